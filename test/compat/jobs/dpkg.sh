# program: dpkg and apt
# needs: dpkg dpkg-query apt-cache
# version: dpkg --version | head -1 | grep -o 'version [^ ]*'
# does: which package a program is of, what is installed; a package built and unpacked
# kind: light
# makes: p.deb
# differs: p\.deb

job() {
	dpkg-query -W -f '${Package}\n' bash
	dpkg -S /bin/bash | cut -d: -f1
	dpkg -l bash | grep -c ^ii
	mkdir -p p/DEBIAN p/usr/share/x && echo x > p/usr/share/x/x
	printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: me\nDescription: d\n' > p/DEBIAN/control
	dpkg-deb --root-owner-group -b p p.deb > /dev/null && dpkg-deb -x p.deb out && cat out/usr/share/x/x
}
