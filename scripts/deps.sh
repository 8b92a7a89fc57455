#!/bin/sh
# Installs what the demo and the tests need and this machine lacks, by the
# system's package manager. Says plainly what it could not install. With the
# argument compat, also the programs of test/compat that are large or rare.
set -eu

# As an ordinary user sees it: root's own PATH may hold tools that no one else
# can reach, and the tests run as both.
plain_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# what is checked : packages for apt, dnf, apk, pacman
wanted='
cmd:bwrap bubblewrap bubblewrap bubblewrap bubblewrap
cmd:git git git git git
cmd:python3 python3 python3 python3 python
py:pytest python3-pytest python3-pytest py3-pytest python-pytest
cmd:node nodejs nodejs nodejs nodejs
cmd:npm npm npm npm npm
cmd:perl perl-base perl-interpreter perl perl
cmd:make make make make make
cmd:rsync rsync rsync rsync rsync
cmd:curl curl curl curl curl
cmd:tmux tmux tmux tmux tmux
cmd:strace strace strace strace strace
cmd:gdb gdb gdb gdb gdb
<<<<<<< HEAD
=======
cmd:sqlite3 sqlite3 sqlite sqlite sqlite
cmd:tmux tmux tmux tmux tmux
cmd:gcc gcc gcc gcc gcc
cmd:ps procps procps-ng procps procps-ng
>>>>>>> 5bc7fb1 (wip suite)
cmd:setpriv util-linux util-linux setpriv util-linux
cmd:mount mount util-linux mount util-linux
cmd:mkfs.btrfs btrfs-progs btrfs-progs btrfs-progs btrfs-progs
cmd:mkfs.xfs xfsprogs xfsprogs xfsprogs xfsprogs
cmd:mkfs.ext4 e2fsprogs e2fsprogs e2fsprogs e2fsprogs
cmd:stress-ng stress-ng stress-ng stress-ng stress-ng
'

if [ "${1:-}" = compat ]; then
	wanted="$wanted
cmd:rg ripgrep ripgrep ripgrep ripgrep
cmd:jq jq jq jq jq
cmd:zstd zstd zstd zstd zstd
cmd:zip zip zip zip zip
cmd:unzip unzip unzip unzip unzip
cmd:cpio cpio cpio cpio cpio
cmd:lsof lsof lsof lsof lsof
cmd:ss iproute2 iproute iproute2 iproute2
cmd:inotifywait inotify-tools inotify-tools inotify-tools inotify-tools
cmd:ssh openssh-client openssh-clients openssh-client openssh
cmd:gpg gnupg gnupg2 gnupg gnupg
cmd:ruby ruby ruby ruby ruby
cmd:vim vim vim-enhanced vim vim
cmd:cmake cmake cmake cmake cmake
cmd:ninja ninja-build ninja-build ninja ninja
cmd:valgrind valgrind valgrind valgrind valgrind
cmd:cargo cargo cargo cargo rust
cmd:javac default-jdk-headless java-latest-openjdk-devel openjdk21-jdk jdk-openjdk
cmd:chromium chromium chromium chromium chromium
cmd:dlv delve delve delve delve
cmd:redis-server redis-server redis redis valkey
cmd:fakeroot fakeroot fakeroot fakeroot fakeroot
cmd:dbus-run-session dbus dbus-daemon dbus dbus
cmd:sudo sudo sudo sudo sudo
cmd:podman podman podman podman podman
"
fi

have() {
	case $1 in
	cmd:*) PATH=$plain_path command -v "${1#cmd:}" >/dev/null 2>&1 ;;
	py:*) PATH=$plain_path python3 -c "import ${1#py:}" >/dev/null 2>&1 ;;
	esac
}

column=0 install=
if command -v apt-get >/dev/null 2>&1; then
	column=2 install='env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends'
elif command -v dnf >/dev/null 2>&1; then
	column=3 install='dnf install -y -q'
elif command -v apk >/dev/null 2>&1; then
	column=4 install='apk add -q'
elif command -v pacman >/dev/null 2>&1; then
	column=5 install='pacman -S --noconfirm --needed'
fi

missing() { # names the checks that fail, or with an argument their packages
	echo "$wanted" | while read -r what packages; do
		[ -n "$what" ] || continue
		have "$what" && continue
		if [ "${1:-}" = packages ]; then
			echo "$what $packages" | cut -d' ' -f"$column"
		else
			echo "${what#*:}"
		fi
	done | sort -u | tr '\n' ' '
}

lacking=$(missing)
[ -n "$lacking" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		as_root='sudo -n'
	else
		echo "deps: missing: $lacking- only root can install them; run: sudo make deps" >&2
		exit 0
	fi
fi
if [ "$column" = 0 ]; then
	echo "deps: missing: $lacking- no package manager that this script knows; install them by hand" >&2
	exit 0
fi

packages=$(missing packages)
echo "deps: installing $packages"
if [ "$column" = 2 ]; then
	$as_root apt-get update -qq </dev/null >/dev/null || echo "deps: apt-get update failed; trying with the lists there are" >&2
fi
# shellcheck disable=SC2086 # both are lists of words
$as_root $install $packages </dev/null >/dev/null || true

lacking=$(missing)
if [ -n "$lacking" ]; then
	echo "deps: could not install: $lacking" >&2
	exit 1
fi
