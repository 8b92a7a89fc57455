#!/bin/sh
# fetch.sh CACHE SERIES: sees that QEMU is installed and that CACHE/SERIES holds
# a Debian kernel: the files kernel and version, and modules/NN-NAME.ko in the
# order in which a guest has to load them. Kernels are unpacked, never installed.
# Prints one line and exits 3 where that cannot be had.
#
# Series: 5.10, 6.1, 6.12, and newest.
set -eu
cache=$1 series=$2
dir=$cache/$series

cannot() {
	echo "$*"
	exit 3
}

[ "$(uname -m)" = x86_64 ] || cannot "the virtual machine is made for x86_64 only"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || cannot "no apt to fetch a kernel with"

lacking=
command -v qemu-system-x86_64 >/dev/null || lacking="$lacking qemu-system-x86"
[ -x /usr/bin/busybox ] || [ -x /bin/busybox ] || lacking="$lacking busybox-static"
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
dir=$(cd "$dir" && pwd)

# The suites lie where this machine's own packages come from, and are believed
# only as signed by Debian's keys.
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keys ] || cannot "no $keys to check a kernel with"
mirror() { # of the archive with a label
	apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Label: $1" 2>/dev/null | head -n 1
}
[ -n "$(mirror Debian)" ] || apt-get update -qq </dev/null >/dev/null 2>&1 || true
archive=$(mirror Debian) security=$(mirror Debian-Security)
[ -n "$archive" ] || cannot "apt has no Debian archive among its sources"
[ -n "$security" ] || security=${archive%/}-security/
case $series in
5.10) suite=bullseye meta=linux-image-cloud-amd64 ;;
6.1) suite=bookworm meta=linux-image-cloud-amd64 ;;
6.12) suite=bookworm meta=linux-image-6.12-cloud-amd64 ;;
newest) suite=trixie-backports meta=linux-image-cloud-amd64 ;;
*) cannot "no such series: $series" ;;
esac
apt=$dir/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
echo "deb [signed-by=$keys] $archive $suite main" >"$apt/sources"
[ $suite != bookworm ] || echo "deb [signed-by=$keys] $security $suite-security main" >>"$apt/sources"
cat >"$apt/conf" <<EOF
Dir::Etc::sourcelist "$apt/sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "$(id -un)";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
EOF
export APT_CONFIG="$apt/conf"
apt-get update -qq -o APT::Update::Error-Mode=any </dev/null >/dev/null 2>&1 || cannot "$suite could not be fetched from $archive, or is not signed by Debian"
depends() { apt-cache depends "$1" 2>/dev/null | awk -v name="$2" '/^ *Depends:/ && $2 ~ name { print $2 }'; }
# The name of a kernel has its ABI number in it; old ones leave the mirrors.
package=$(depends $meta '^linux-image-[0-9]' | head -n 1)
[ -n "$package" ] || cannot "$suite has no $meta"
version=${package#linux-image-}
# Since 7.3 the kernel and its modules are packages of their own.
for p in "$package" $(depends "$package" '^linux-(base|binary|modules)-[0-9]'); do
	(cd "$dir/deb" && apt-get download -qq "$p" </dev/null >/dev/null 2>&1) || cannot "could not download $p from $archive"
	deb=$(ls "$dir/deb/${p}_"*.deb)
	signed=$(apt-cache show "$p=$(dpkg-deb -f "$deb" Version)" | awk '$1 == "SHA256:" { print $2; exit }')
	[ -n "$signed" ] && [ "$(sha256sum <"$deb")" = "$signed  -" ] || cannot "$p is not what the signed list names"
	dpkg-deb -x "$deb" "$dir/root"
done
base=$dir/root
[ -d "$base/lib/modules/$version" ] || base=$dir/root/usr
for image in "$dir/root/boot/vmlinuz-$version" "$base/lib/modules/$version/vmlinuz"; do
	[ ! -e "$image" ] || mv "$image" "$dir/kernel"
done
[ -e "$dir/kernel" ] || cannot "$package holds no kernel where it is looked for"
depmod -b "$base" "$version"
mkdir "$dir/modules"
n=100
for module in virtio_pci virtio_blk overlay fuse ext4 xfs btrfs; do
	modprobe -d "$base" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r path; do
	n=$((n + 1))
	name=$(basename "$path")
	case $name in
	*.ko.xz) xz -dc "$path" >"$dir/modules/$n-${name%.xz}" ;;
	*) cp "$path" "$dir/modules/$n-$name" ;;
	esac
done
echo "$version" >"$dir/version"
rm -rf "$dir/apt" "$dir/deb" "$dir/root"
touch "$dir/ready"
