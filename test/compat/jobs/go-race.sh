# program: go test -race
# needs: go gcc
# version: go version | cut -d' ' -f3
# does: a data race found by the detector (cgo, fixed addresses), and a test without one
# kind: long
# makes: race_test.go

job() {
	go mod init example 2> /dev/null
	cat > race_test.go <<'END'
package example

import (
	"sync"
	"testing"
)

func TestClean(t *testing.T) {
	var mu sync.Mutex
	n := 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { mu.Lock(); n++; mu.Unlock() })
	}
	wg.Wait()
}

func TestRacy(t *testing.T) {
	n := 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { n++ })
	}
	wg.Wait()
}
END
	CGO_ENABLED=1 go test -race -count=1 -run Clean . | sed 's/\t[0-9.]*s$//'
	CGO_ENABLED=1 go test -race -run Racy . > out 2>&1 && exit 9
	grep -c 'WARNING: DATA RACE' out | sed 's/.*/found/'
	rm out
}
