# program: ssh-keygen and ssh-agent
# needs: ssh-keygen ssh-agent ssh-add git
# version: ssh -V 2>&1 | cut -d, -f1
# does: a key, a signature, an agent, a commit signed with the key
# kind: light
# makes: key.pub file.sig
# differs: ^key|\.sig$|^allowed$
# varies: \.git/

job() {
	ssh-keygen -q -t ed25519 -N '' -C me@example.org -f key
	echo data > file && ssh-keygen -q -Y sign -f key -n file file 2> /dev/null
	echo "me@example.org $(cut -d' ' -f1,2 key.pub)" > allowed
	ssh-keygen -q -Y verify -f allowed -I me@example.org -n file -s file.sig < file && echo verified
	eval "$(ssh-agent -s)" > /dev/null; ssh-add -q key; ssh-add -l | grep -c ED25519; ssh-agent -k > /dev/null
	git init -q && git -c user.name=a -c user.email=me@example.org -c gpg.format=ssh -c user.signingKey="$PWD/key" -c gpg.ssh.allowedSignersFile="$PWD/allowed" commit -q -S --allow-empty -m signed
	git -c gpg.ssh.allowedSignersFile="$PWD/allowed" log --format=%G? 
}
