# program: openssl
# version: openssl version | cut -d' ' -f1,2
# does: keys, a certificate, a signature, a TLS server and client over loopback
# kind: light
# makes: cert.pem signed.bin
# differs: \.pem$|signed\.bin$

job() {
	openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 3 -subj /CN=localhost -addext subjectAltName=DNS:localhost 2> /dev/null
	echo data > data.txt
	openssl dgst -sha256 -sign key.pem -out signed.bin data.txt
	openssl x509 -in cert.pem -pubkey -noout > public.pem
	openssl dgst -sha256 -verify public.pem -signature signed.bin data.txt
	openssl s_server -accept 127.0.0.1:8734 -cert cert.pem -key key.pem -www -quiet & local server=$!
	for _ in $(seq 100); do
		echo -e 'GET / HTTP/1.0\r\n\r' | openssl s_client -connect localhost:8734 -CAfile cert.pem -verify_return_error -quiet 2> /dev/null > tls.txt && grep -q '200 ok' tls.txt && break
		sleep 0.05
	done
	grep -o '200 ok' tls.txt; rm tls.txt
	kill $server; wait $server || true
}
