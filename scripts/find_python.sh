#!/bin/sh
# Prints the Python that set-up runs with: $PYTHON when given, else the first on PATH that is new
# enough. Each candidate is run, for a name on PATH may be a stub that starts nothing.
set -eu

version_of() {
    found=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null 2>/dev/null) || return 1
    echo "$found" | sed -n 's/^[^0-9]*\([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p' | head -n 1
}

new_enough() {
    major=${1%%.*}
    minor=${1#*.}
    [ "$major" -gt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -ge 11 ]; }
}

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python python3.13 python3.12 python3.11 python3.14
fi
seen=""
for candidate in "$@"; do
    version=$(version_of "$candidate") || version=""
    [ -n "$version" ] || continue
    if new_enough "$version"; then
        command -v "$candidate"
        exit 0
    fi
    seen="$seen, $candidate is $version"
done

remedy="install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13), or name one: make setup PYTHON=/path/to/python3.11"
if [ -n "${PYTHON:-}" ] && [ -z "$seen" ]; then
    seen=", '$PYTHON' does not start"
fi
echo "error: Python 3.11 or newer is needed${seen:-, none is on PATH}: $remedy" >&2
exit 4
