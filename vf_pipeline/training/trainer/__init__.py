"""The trainer's process: ``transformers.Trainer`` on samples. Training's only room with torch."""
