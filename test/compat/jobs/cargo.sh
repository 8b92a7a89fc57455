# program: cargo
# needs: cargo rustc gcc
# version: cargo --version | cut -d' ' -f1,2
# does: init, build, test and run --offline, a second build with nothing to do
# kind: heavy
# makes: app/target/debug/app app/Cargo.lock
# differs: target/
# varies: target/.*(incremental|fingerprint|\.cargo-lock|deps)|\.rustc_info\.json|\.git/

job() {
	export CARGO_TERM_COLOR=never USER=${USER:-me}
	cargo init -q --vcs none --name app app && cd app
	cat > src/main.rs <<'END'
fn double(n: i32) -> i32 { 2 * n }
fn main() {
    let sum: i32 = (0..4).map(|i| std::thread::spawn(move || double(i))).map(|t| t.join().unwrap()).sum();
    println!("app {sum}");
}
#[test]
fn doubles() { assert_eq!(double(2), 4); }
END
	cargo build -q --offline && target/debug/app
	cargo test -q --offline 2>&1 | grep -o 'test result: ok. 1 passed'
	cargo build --offline 2>&1 | grep -c Compiling || true
	cargo run -q --offline
}
