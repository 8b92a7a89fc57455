# program: curl
# needs: curl python3
# version: curl --version | head -1 | cut -d' ' -f1,2
# does: get and upload by the name localhost to a server inside the same box, IPv4 and IPv6, a unix socket; a refused port at once
# kind: core
# makes: got.txt up.txt

job() {
	cat > server.py <<'END'
import http.server, os, socket, socketserver, sys, threading
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def address_string(self): return "client"
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"got " + self.path.encode() + b"\n")
    def do_PUT(self):
        n = int(self.headers["Content-Length"]); open("up.txt", "wb").write(self.rfile.read(n)); self.send_response(201); self.end_headers()
class V6(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6
class U(socketserver.ThreadingUnixStreamServer): pass
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 8731), H), V6(("::1", 8731), H), U(sys.argv[1], H)]
for s in servers: threading.Thread(target=s.serve_forever, daemon=True).start()
print("ready", flush=True); sys.stdin.read()
END
	local dir; dir=$(mktemp -d)
	coproc SERVER { python3 server.py "$dir/s"; }
	read -r line <&"${SERVER[0]}"; echo "$line"
	curl -sS -o got.txt http://localhost:8731/a && cat got.txt
	curl -sS 'http://[::1]:8731/six'
	curl -sS -T server.py http://127.0.0.1:8731/up && cmp server.py up.txt
	curl -sS --unix-socket "$dir/s" http://x/unix
	curl -s http://127.0.0.1:8739/ || echo "refused with $?"
	eval "exec ${SERVER[1]}>&-"; rm -r "$dir"
}
