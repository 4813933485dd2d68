#!/usr/bin/env bash
# Makes the files of a release for one platform: an archive with the program, its man pages and completions, a Debian package, and their
# checksums. Looks into each of them, and fails if it is not as it should be.
#
#   scripts/release.sh [--target TARGET] [--program FILE] [DIRECTORY]      the files go to target/dist, or to this directory
#
# The target is musl's of this machine, whose program is static. Without that target of rustup or without musl-gcc it is the one of the
# machine's own library, and the script says so. --program packs a program that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "scripts/release.sh: $*" >&2; exit 1; }

target="" program="" directory="target/dist"
while [ $# -gt 0 ]; do
    case "$1" in
    --target) target=${2:?--target needs a target} && shift 2 ;;
    --program) program=$(realpath "${2:?--program needs a file}") && shift 2 ;;
    -*) fail "$1 is not known; there are --target, --program and a directory" ;;
    *) directory=$1 && shift ;;
    esac
done
mkdir -p "$directory"
directory=$(realpath "$directory")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

machine=$(uname -m)
if [ -z "$target" ]; then
    target=$machine-unknown-linux-musl
    if ! rustup target list --installed | grep -qx "$target" || ! command -v musl-gcc >/dev/null; then
        target=$machine-unknown-linux-gnu
        echo "NOT static: rustup has no target $machine-unknown-linux-musl, or there is no musl-gcc (Debian: musl-tools)" >&2
    fi
fi
if [ -z "$program" ]; then
    cargo build --profile dist --locked -p tidegate-cli --features full --target "$target"
    program=${CARGO_TARGET_DIR:-target}/$target/dist/tidegate
fi

# The program: stripped, not too large, and static where it is for musl.
cp "$program" "$scratch/tidegate"
strip --strip-all "$scratch/tidegate"
size=$(stat -c %s "$scratch/tidegate")
# A program of the tests is not optimized, and a static one has the C library in it.
case "$target" in
*-musl) most=20500000 ;;
*) most=20000000 ;;
esac
case "$program" in
*/dist/tidegate) [ "$size" -le "$most" ] || fail "the program has $size bytes; at most $most are allowed" ;;
esac
needed=$(readelf -d "$scratch/tidegate" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
case "$target" in
*-musl) [ -z "$needed" ] || fail "the program is not static, it needs $needed" ;;
esac
version=$("$scratch/tidegate" --version | awk '{ print $2 }')
grep -qx "version = \"$version\"" Cargo.toml || fail "the program has the version $version, which is not that of Cargo.toml"

# Archives of the same commit are equal.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH=$epoch
name=tidegate-v$version-$target
root=$scratch/$name
mkdir -p "$root/completions"
install -m 755 "$scratch/tidegate" "$root/tidegate"
install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$root/"
"$root/tidegate" man --out "$root/man"
"$root/tidegate" completions bash >"$root/completions/tidegate.bash"
"$root/tidegate" completions zsh >"$root/completions/_tidegate"
"$root/tidegate" completions fish >"$root/completions/tidegate.fish"
bash -n "$root/completions/tidegate.bash"
for command in $("$root/tidegate" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -vx help); do
    [ -s "$root/man/tidegate-$command.1" ] || fail "the command $command has no man page"
    grep -q "\b$command\b" "$root"/completions/tidegate.bash || fail "the command $command is not completed"
done
archive=$directory/$name.tar.gz
tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" | gzip -9n >"$archive"
mkdir "$scratch/unpacked"
tar -C "$scratch/unpacked" -xzf "$archive"
[ "$("$scratch/unpacked/$name/tidegate" --version)" = "tidegate $version" ] || fail "the archive's program does not run"

# The Debian package.
case "$target" in
x86_64-*) architecture=amd64 ;;
aarch64-*) architecture=arm64 ;;
*) fail "no Debian package for $target" ;;
esac
deb=$scratch/deb
put() { install -D -m "$1" "$2" "$deb/$3"; }
put 755 "$root/tidegate" usr/bin/tidegate
put 644 packaging/rules.yaml etc/tidegate/rules.yaml
put 644 packaging/systemd/tidegate.service usr/lib/systemd/system/tidegate.service
put 644 "$root/completions/tidegate.bash" usr/share/bash-completion/completions/tidegate
put 644 "$root/completions/_tidegate" usr/share/zsh/vendor-completions/_tidegate
put 644 "$root/completions/tidegate.fish" usr/share/fish/vendor_completions.d/tidegate.fish
put 644 README.md usr/share/doc/tidegate/README.md
put 644 CHANGELOG.md usr/share/doc/tidegate/changelog
gzip -9n "$deb/usr/share/doc/tidegate/changelog"
{
    echo "Tidegate is licensed under Apache-2.0 or MIT, at your option."
    printf '\nMIT:\n\n' && cat LICENSE-MIT && printf '\nApache-2.0: see /usr/share/common-licenses/Apache-2.0.\n'
} >"$scratch/copyright"
put 644 "$scratch/copyright" usr/share/doc/tidegate/copyright
for page in "$root"/man/*.1; do
    put 644 "$page" "usr/share/man/man1/$(basename "$page")"
    gzip -9n "$deb/usr/share/man/man1/$(basename "$page")"
done
depends=""
if [ -n "$needed" ]; then
    least=$(readelf -V "$scratch/tidegate" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
    depends="libc6 (>= ${least#GLIBC_}), libgcc-s1"
fi
mkdir -p "$deb/DEBIAN"
{
    echo "Package: tidegate"
    echo "Version: $version"
    echo "Architecture: $architecture"
    echo "Maintainer: The Tidegate developers"
    echo "Section: net"
    echo "Priority: optional"
    echo "Installed-Size: $(du -sk --exclude=DEBIAN "$deb" | cut -f1)"
    [ -z "$depends" ] || echo "Depends: $depends"
    echo "Homepage: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)"
    echo "Description: rate limits and flow control for services"
    echo " Limits over HTTP, the Redis protocol and gRPC, and a command that replays an"
    echo " access log against candidate limits."
} >"$deb/DEBIAN/control"
echo /etc/tidegate/rules.yaml >"$deb/DEBIAN/conffiles"
# systemd enables and starts the service, if the machine runs systemd.
cat >"$deb/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = configure ] && command -v deb-systemd-helper >/dev/null; then
    deb-systemd-helper unmask tidegate.service >/dev/null || true
    if deb-systemd-helper --quiet was-enabled tidegate.service; then
        deb-systemd-helper enable tidegate.service >/dev/null || true
    else
        deb-systemd-helper update-state tidegate.service >/dev/null || true
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        deb-systemd-invoke restart tidegate.service >/dev/null || true
    fi
fi
SCRIPT
cat >"$deb/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop tidegate.service >/dev/null || true
fi
SCRIPT
cat >"$deb/DEBIAN/postrm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ] && command -v deb-systemd-helper >/dev/null; then
    deb-systemd-helper purge tidegate.service >/dev/null || true
fi
SCRIPT
chmod 755 "$deb"/DEBIAN/p*
for script in "$deb"/DEBIAN/p*; do sh -n "$script"; done
package=$directory/tidegate_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$deb" "$package" >/dev/null

# What comes out of it works: the program runs, takes the rules, and its unit starts a program that there is.
dpkg-deb -x "$package" "$scratch/installed"
"$scratch/installed/usr/bin/tidegate" check "$scratch/installed/etc/tidegate/rules.yaml" >/dev/null
[ -x "$scratch/installed$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' packaging/systemd/tidegate.service)" ] || fail "the unit starts another program"
[ "$(dpkg-deb -f "$package" Version)" = "$version" ] || fail "the package has another version"

cd "$directory"
for file in "$name.tar.gz" "$(basename "$package")"; do
    sha256sum "$file" >"$file.sha256"
    echo "$directory/$file ($(stat -c %s "$file") bytes)"
done
