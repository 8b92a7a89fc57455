# program: node
# version: node --version
# does: worker_threads, child_process (exec, fork, spawn), cluster, an HTTP server on loopback, unix sockets, fs.watch, dns.lookup of localhost and of its own name
# kind: core
# makes: main.js out.txt

job() {
	cat > main.js <<'END'
const { Worker, isMainThread, workerData, parentPort } = require('worker_threads')
const cp = require('child_process'), fs = require('fs'), http = require('http'), net = require('net'), os = require('os'), path = require('path'), dns = require('dns').promises, cluster = require('cluster')
if (!isMainThread) {
  Atomics.add(new Int32Array(workerData), 0, 1); parentPort.postMessage('done')
} else if (process.argv[2] === 'child') {
  process.on('message', m => { process.send(m * 2); process.disconnect() })
} else if (!cluster.isPrimary) {
  process.send('worker'); process.disconnect()
} else main()

async function main() {
  const shared = new SharedArrayBuffer(4)
  await Promise.all([1, 2, 3].map(() => new Promise((ok, no) => new Worker(__filename, { workerData: shared }).on('exit', ok).on('error', no))))
  console.log('workers', new Int32Array(shared)[0])
  console.log('exec', cp.execSync('echo hi').toString().trim(), cp.spawnSync('sh', ['-c', 'exit 3']).status)
  const child = cp.fork(__filename, ['child']); child.send(21)
  console.log('fork', await new Promise(ok => child.on('message', ok))); await new Promise(ok => child.on('exit', ok))
  const w = cluster.fork(); console.log('cluster', await new Promise(ok => w.on('message', ok))); await new Promise(ok => w.on('exit', ok))
  const server = http.createServer((q, a) => a.end('served ' + q.url)); await new Promise(ok => server.listen(0, 'localhost', ok))
  console.log('fetch', await (await fetch(`http://localhost:${server.address().port}/x`)).text()); server.closeAllConnections(); server.close()
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'n-')), sock = path.join(dir, 's')
  const unix = net.createServer(c => c.end('unix')); await new Promise(ok => unix.listen(sock, ok))
  console.log('socket', await new Promise(ok => net.connect(sock).on('data', d => ok(d.toString())))); unix.close()
  const seen = new Promise(ok => { const f = fs.watch(dir, (e, name) => { if (name === 'new') { f.close(); ok(name) } }) })
  fs.writeFileSync(path.join(dir, 'new'), ''); console.log('watch', await seen); fs.rmSync(dir, { recursive: true })
  console.log('localhost', (await dns.lookup('localhost')).address.length > 2, 'own name', (await dns.lookup(os.hostname())).address.length > 2)
  console.log('user', os.userInfo().uid === process.getuid(), os.cpus().length > 0, os.totalmem() > 0)
  fs.writeFileSync('out.txt', require('crypto').createHash('sha256').update('x').digest('hex'))
}
END
	node main.js
}
