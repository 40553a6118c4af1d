#!/bin/sh
# Makes sure that the browser tests find Chromium.
set -eu
. "$(dirname "$0")/apt.sh"

command -v chromium > /dev/null || apt_install "Chromium (for the browser tests)" chromium
