# program: fakeroot
# version: fakeroot --version
# does: files that seem to be root's, a device node that seems to be made, a tar of both
# kind: light
# makes: a.tar
# differs: a\.tar

job() {
	mkdir d && echo x > d/f
	fakeroot sh -ec 'chown 0:0 d/f; chown 123:456 d; stat -c "%u:%g" d/f d; mknod d/null c 1 3; tar cf a.tar d; rm d/null'
	rm -r d
	tar tvf a.tar | sed 's/ 2[0-9-]* [0-9:]*//' | sort
}
