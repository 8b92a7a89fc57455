# program: tar
# version: tar --version | head -1
# does: archives with gzip, xz and zstd, there and back; cpio and zip
# needs: tar gzip xz zstd cpio zip unzip
# kind: light
# makes: a.tar.xz back/a/file
# differs: \.(zip|cpio|tar.*)$

before() { mkdir -p from/a && seq 10000 > from/a/file && ln from/a/file from/hard && ln -s a/file from/soft; }

job() {
	for z in gz xz zst; do
		tar -C from -caf a.tar.$z . && mkdir back.$z && tar -C back.$z -xf a.tar.$z && diff -r from back.$z
	done
	mv back.xz back
	(cd from && find . | sort | cpio -o --quiet) > a.cpio && mkdir c && (cd c && cpio -id --quiet < ../a.cpio) && diff -r from c
	zip -qr a.zip from && unzip -qd z a.zip && diff -r from z/from && echo all the same
	xz -T2 -k from/a/file --stdout | xz -d | cmp - from/a/file
}
