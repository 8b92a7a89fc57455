# program: vim
# version: vim --version | head -1 | cut -c1-30
# does: an edit by script, a shell command, undo; swap and viminfo files
# kind: light
# makes: text.txt

before() { printf 'one\ntwo\n' > text.txt; }

job() {
	vim -Nu NONE -es -c '%s/two/three/' -c 'r !echo from a shell' -c wq text.txt < /dev/null
	cat text.txt
}
