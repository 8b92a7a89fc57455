# program: npm
# version: npm --version
# does: pack, install and ci from a local tarball without network, scripts with hooks, a linked program
# kind: core
# makes: app/node_modules/dep/index.js app/package-lock.json app/out.txt
# differs: \.tgz$|package-lock\.json$

job() {
	export npm_config_offline=true npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
	mkdir dep app
	echo '{"name":"dep","version":"1.0.0","bin":{"dep":"cli.js"}}' > dep/package.json
	echo 'exports.double = n => 2 * n' > dep/index.js
	printf '#!/usr/bin/env node\nconsole.log("dep", require("./index.js").double(+process.argv[2]))\n' > dep/cli.js; chmod 755 dep/cli.js
	(cd dep && npm pack --silent --pack-destination ..)
	cd app
	cat > package.json <<'END'
{"name":"app","version":"1.0.0","scripts":{"prebuild":"echo before","build":"dep 21 > out.txt && cat out.txt","test":"node -e \"require('assert').equal(require('dep').double(2), 4)\""}}
END
	npm install --silent ../dep-1.0.0.tgz
	rm -rf node_modules
	npm ci --silent
	npm run -s build
	npm test --silent
}
