#!/bin/sh
# Print the path of a Python >= 3.11 that runs and can make virtual environments:
#
#     tools/python.sh             the newest one found
#     tools/python.sh COMMAND     this one (a name or a path), or nothing
#
# A pyenv shim may be on PATH and yet refuse to run, because its version is not the selected one;
# then the newest installed release of that version is selected for it.
set -u

check='
import sys
if sys.version_info < (3, 11): sys.exit("older than 3.11")
import ensurepip, venv
print(sys.executable)
'

# The real executable behind a command, or failure.
runs() { "$@" -c "$check" 2>/dev/null </dev/null; }

# The newest release `3.N.x` that pyenv has for the command `python3.N`.
pyenv_release() {
    series=${1##*/}
    series=${series#python}
    case $series in 3.*) ;; *) return 1 ;; esac
    command -v pyenv >/dev/null 2>&1 || return 1
    pyenv versions --bare 2>/dev/null | grep -E "^3\.${series#3.}\.[0-9]+\$" |
        sort -t. -k3,3n | tail -n 1 | grep .
}

for command in ${1:-python3.14 python3.13 python3.12 python3.11 python3}; do
    runs "$command" && exit 0
    release=$(pyenv_release "$command") && runs env PYENV_VERSION="$release" "$command" && exit 0
done
echo "No Python 3.11 or newer that runs and has venv and ensurepip (tried: ${1:-python3.14 ... python3.11, python3})." >&2
echo "On Debian and Ubuntu the package is python3-venv. Another one: make ... PYTHON=/path/to/python3" >&2
exit 1
