# program: chromium
# version: chromium --version 2> /dev/null
# does: headless, the document of a local page after its script ran, a PDF and a screenshot of it
# kind: heavy
# makes: dom.html page.pdf
# differs: page\.(pdf|png)$
# note: with --no-sandbox: its own sandbox needs a user namespace of its own (or a setuid helper), which no box gives; the box is the sandbox

job() {
	echo '<title>page</title><body><script>document.body.append("computed " + 6 * 7)</script>' > page.html
	local dir; dir=$(mktemp -d)
	# Every flag but the first keeps it from looking for its services.
	local flags=(--no-sandbox --headless --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$dir")
	timeout 100 chromium "${flags[@]}" --dump-dom "file://$PWD/page.html" 2> /dev/null > dom.html
	grep -o 'computed 42' dom.html
	timeout 100 chromium "${flags[@]}" --no-pdf-header-footer --print-to-pdf=page.pdf "file://$PWD/page.html" > /dev/null 2>&1
	head -c 5 page.pdf; echo
	rm -rf "$dir" ~/.config/chromium ~/.cache/chromium ~/.pki ~/.local/share/pki
}
