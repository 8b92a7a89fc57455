# program: go
# version: go version | cut -d' ' -f3
# does: gofmt, vet, build, run and list of a module with two packages, over a warm build cache
# kind: core
# makes: app lib/lib.go
# differs: ^app$

job() {
	go mod init example 2> /dev/null
	mkdir lib
	printf 'package lib\n\n// Double doubles.\nfunc Double(n int) int { return 2 * n }\n' > lib/lib.go
	printf 'package main\n\nimport "example/lib"\n\nfunc main() { println("app", lib.Double(21)) }\n' > main.go
	gofmt -l .
	go vet ./...
	CGO_ENABLED=0 go build -trimpath -o app .
	./app 2>&1
	CGO_ENABLED=0 go run . 2>&1
	go list ./...
}
