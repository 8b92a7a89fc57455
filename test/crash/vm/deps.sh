#!/bin/sh
# Fetches what a virtual machine needs into a directory: qemu by the package
# manager, and a Debian kernel, unpacked and never installed. Prints one line
# and exits 3 where that cannot be had.
#
# It leaves DIR/kernel and DIR/modules/NN-NAME.ko, in the order in which the
# guest has to load them.
set -eu
dir=$1

cannot() {
	echo "$*"
	exit 3
}

[ "$(uname -m)" = x86_64 ] || cannot "the virtual machine is made for x86_64 only"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || cannot "no apt to fetch a kernel with"

lacking=
command -v qemu-system-x86_64 >/dev/null || lacking="$lacking qemu-system-x86"
command -v depmod >/dev/null || lacking="$lacking kmod"
command -v xz >/dev/null || lacking="$lacking xz-utils"
if [ -n "$lacking" ]; then
	[ "$(id -u)" = 0 ] || cannot "only root can install:$lacking"
	apt-get update -qq </dev/null >/dev/null || true
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacking </dev/null >/dev/null || cannot "could not install:$lacking"
fi

[ -e "$dir/ready" ] && exit 0
rm -rf "$dir"
mkdir -p "$dir/deb"
# The name of a kernel has its ABI number in it; old ones leave the mirrors.
package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
[ -n "$package" ] || cannot "apt knows no linux-image-cloud-amd64"
(cd "$dir/deb" && apt-get download -qq "$package" </dev/null >/dev/null 2>&1) || cannot "could not download $package"
dpkg-deb -x "$dir"/deb/*.deb "$dir/root"
version=${package#linux-image-}
mv "$dir/root/boot/vmlinuz-$version" "$dir/kernel"
depmod -b "$dir/root" "$version"
mkdir "$dir/modules"
n=100
for module in virtio_pci virtio_blk overlay fuse ext4 xfs btrfs; do
	modprobe -d "$dir/root" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r path; do
	n=$((n + 1))
	name=$(basename "$path")
	case $name in
	*.ko.xz) xz -dc "$path" >"$dir/modules/$n-${name%.xz}" ;;
	*) cp "$path" "$dir/modules/$n-$name" ;;
	esac
done
rm -rf "$dir/deb" "$dir/root"
touch "$dir/ready"
