# program: jq
# version: jq --version
# does: filters over a document, arguments, streams
# kind: light
# makes: out.json

job() {
	echo '{"a":[1,2,{"b":"c"}]}' | jq -c --arg x y '.a[2].b = $x | .n = (.a[0:2] | add)' | tee out.json
	seq 1000 | jq -s add
}
