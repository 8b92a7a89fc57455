# program: ripgrep
# needs: rg
# version: rg --version | head -1
# does: a search by many threads that heeds .gitignore, mapped files, replacements
# kind: light
# makes: found.txt

before() { mkdir -p d/e node_modules && for i in $(seq 200); do echo "needle $i" > d/e/$i.txt; done && echo needle > node_modules/x && echo node_modules > .ignore; }

job() {
	rg -c needle --no-filename | wc -l
	rg --sort path -l 'needle 1$' > found.txt; cat found.txt
	rg --mmap -N --no-filename 'needle 20$' -r found
}
