# program: gpg
# version: gpg --version | head -1
# does: a key made in HOME by the agent that gpg starts, a signature, an encrypted file
# kind: heavy
# makes: file.asc
# differs: \.asc$
# note: the user's own ~/.gnupg is absent; keys made in a box go with it

job() {
	gpg --batch --quiet --pinentry-mode loopback --passphrase '' --quick-generate-key me@example.org ed25519 sign never 2> /dev/null
	echo data > file
	gpg --batch --quiet --armor --detach-sign file && gpg --verify file.asc file 2>&1 | grep -o 'Good signature'
	gpg --batch --quiet --symmetric --pinentry-mode loopback --passphrase x -o - file | gpg --batch --quiet --decrypt --pinentry-mode loopback --passphrase x
	gpgconf --kill all; rm -rf ~/.gnupg
}
