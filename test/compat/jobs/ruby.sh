# program: ruby
# version: ruby --version | cut -d' ' -f1,2
# does: threads, fork, sockets on loopback, temporary files
# kind: light
# makes: out.txt

job() {
	ruby -rsocket -rtempfile -e '
		puts 4.times.map { |i| Thread.new { i * i } }.map(&:value).sum
		r, w = IO.pipe; pid = fork { r.close; w.puts "from a child"; exit! 3 }; w.close; puts r.read; Process.wait pid; puts $?.exitstatus
		s = TCPServer.new("localhost", 0); t = Thread.new { c = s.accept; c.puts "served"; c.close }
		puts TCPSocket.new("localhost", s.addr[1]).read; t.join
		Tempfile.create("x") { |f| f.write "x"; puts File.exist?(f.path) }
		puts Socket.gethostname != "", Addrinfo.getaddrinfo(Socket.gethostname, nil).any?
		File.write "out.txt", `echo through a shell`'
	cat out.txt
}
