# program: java
# needs: java javac jar
# version: java -version 2>&1 | head -1
# does: javac, a jar, threads, InetAddress.getLocalHost, an HTTP server and client on loopback, a subprocess, jcmd to itself, mapped files
# kind: heavy
# makes: app.jar Main.java
# differs: \.jar$

job() {
	cat > Main.java <<'END'
import com.sun.net.httpserver.HttpServer;
import java.net.*; import java.net.http.*; import java.nio.channels.FileChannel; import java.nio.file.*; import java.util.stream.*;
public class Main {
	public static void main(String[] a) throws Exception {
		long start = System.nanoTime();
		System.out.println("local host " + (InetAddress.getLocalHost().getHostAddress().length() > 0) + " in time " + (System.nanoTime() - start < 4_000_000_000L));
		System.out.println("loopback " + InetAddress.getByName("localhost").isLoopbackAddress());
		HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
		s.createContext("/", x -> { x.sendResponseHeaders(200, 6); x.getResponseBody().write("served".getBytes()); x.close(); }); s.start();
		System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + s.getAddress().getPort())).build(), HttpResponse.BodyHandlers.ofString()).body()); s.stop(0);
		System.out.println(IntStream.range(0, 1000).parallel().sum());
		Process p = new ProcessBuilder("echo", "child").inheritIO().start(); System.out.println("exit " + p.waitFor());
		Path f = Files.createTempFile("x", ""); Files.write(f, new byte[4096]); try (FileChannel c = FileChannel.open(f, StandardOpenOption.READ, StandardOpenOption.WRITE)) { c.map(FileChannel.MapMode.READ_WRITE, 0, 4096).put(0, (byte) 1); } System.out.println("mapped " + Files.readAllBytes(f)[0]); Files.delete(f);
		Process j = new ProcessBuilder("jcmd", "" + ProcessHandle.current().pid(), "VM.uptime").start(); j.getInputStream().readAllBytes(); System.out.println("jcmd " + j.waitFor());
		System.out.println(System.getProperty("user.name").length() > 0 && Files.isWritable(Path.of(System.getProperty("java.io.tmpdir"))));
		System.exit(0);
	}
}
END
	mkdir classes && javac -d classes Main.java
	jar cfe app.jar Main -C classes .
	java -Xmx256m -jar app.jar
}
