#!/bin/sh
# Prints the home of a Java that Spark 4 runs on (17 or later), and installs Debian's when there is none.
set -eu
. "$(dirname "$0")/apt.sh"

MINIMUM=17
JVMS=${JVMS:-/usr/lib/jvm}

# Prints the Java home of the given java command if it is new enough.
home_if_new_enough() {
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(echo "$settings" | sed -n 's/^ *java\.specification\.version = //p')
    home=$(echo "$settings" | sed -n 's/^ *java\.home = //p')
    # Up to Java 8 the specification version reads 1.8.
    [ "${version%%.*}" -ge "$MINIMUM" ] 2> /dev/null && echo "$home"
}

# JAVA_HOME first, as Spark does; then the PATH; then what lies where Debian's packages put it.
find_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" "$JVMS"/*/bin/java; do
        if [ -x "$java" ] && home_if_new_enough "$java"; then
            return 0
        fi
    done
    return 1
}

find_java && exit 0
apt_install "Java $MINIMUM or later" openjdk-17-jre-headless openjdk-21-jre-headless
find_java || {
    echo "Java was installed, but no java of version $MINIMUM or later runs: set JAVA_HOME to one and run make again." >&2
    exit 1
}
