#!/bin/sh
# venv.sh PYTHON FOLDER: makes a virtual environment, unless it is there already.
set -eu
. "$(dirname "$0")/apt.sh"

python=$1
folder=$2

command -v "$python" > /dev/null || apt_install "Python 3" python3 || exit 1
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "$("$python" --version) is too old: tfos_magic needs Python 3.10 or later." >&2
    echo "Name one with: make PYTHON=/path/to/python3 ..." >&2
    exit 1
}

[ -x "$folder/bin/pip" ] && exit 0
# Debian's python3 comes without ensurepip, which venv needs; its name for it is python3-venv.
"$python" -c 'import ensurepip, venv' 2> /dev/null || apt_install "Python's venv module" python3-venv
"$python" -m venv "$folder"
