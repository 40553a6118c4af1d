# Sourced by the other scripts: installs a Debian package, or says what has to be done by hand.

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        return 1
    fi
}

# apt_install WHAT PACKAGE...: installs the first of the packages that this release has.
# Package names differ between releases, hence the alternatives. All output goes to stderr.
apt_install() {
    what=$1
    shift
    by_hand="Please install $what by hand (on Debian, as root: apt-get update && apt-get install $1) and run make again."
    if ! command -v apt-get > /dev/null; then
        echo "$what is missing, and this system has no apt-get to install it with. $by_hand" >&2
        return 1
    fi
    echo "$what is missing; installing it with apt-get ..." >&2
    # A fresh container has no package lists at all, and old lists name files that are gone.
    if ! as_root apt-get -qq update >&2; then
        echo "$what is missing, and apt-get update failed: it needs root, or sudo without a password. $by_hand" >&2
        return 1
    fi
    for package in "$@"; do
        if apt-cache show "$package" > /dev/null 2>&1; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$package" >&2 &&
                return 0
            echo "apt-get could not install $package; its own message is above. $by_hand" >&2
            return 1
        fi
    done
    echo "$what is missing, and this release has none of the packages: $*. $by_hand" >&2
    return 1
}
