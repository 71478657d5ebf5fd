"""The client's side of a model server: where it is, how it is asked, and what its errors mean."""
