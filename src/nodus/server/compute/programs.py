"""How a command is started from a shell, so that one that can't be says so in one line, as people know it."""

from __future__ import annotations

# The check has a shell of its own: variables of this one could be the command's. A race with a program that goes in
# between costs the clear words, no more.
RUN_PROGRAM = """(
set -f
case $1 in
  */*) [ -f "$1" ] && [ -x "$1" ] && exit 0
       [ -d "$1" ] && { echo "$1: is a directory" >&2; exit 126; }
       [ -e "$1" ] && { echo "$1: permission denied" >&2; exit 126; }
       echo "$1: no such file or directory" >&2; exit 127 ;;
esac
IFS=:
for folder in ${PATH-/usr/local/bin:/usr/bin:/bin}; do
  [ -f "${folder:-.}/$1" ] && [ -x "${folder:-.}/$1" ] && exit 0
done
echo "$1: command not found" >&2
exit 127
) || exit
exec "$@"
"""
"""Shell text that becomes the program and arguments ``$@``, or ends with 127 or 126 and one line on standard error."""
