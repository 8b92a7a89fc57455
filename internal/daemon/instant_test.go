package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

func withPeer(ctx context.Context, p peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// instant is boxes whose commands take no time.
type instant struct{ *memory }

type over struct{ out *outcome.Outcome }

var done = func() *outcome.Outcome {
	o := outcome.New()
	o.Status, o.ExitCode = outcome.Success, 0
	return o
}()

func (instant) Exec(_ context.Context, id string, r api.Run, _ Streams) (Started, error) {
	return over{done}, nil
}

func (o over) Exec() api.Exec                                 { return api.Exec{ID: "1", Box: "b00001"} }
func (o over) Wait(context.Context) (*outcome.Outcome, error) { return o.out, nil }
func (o over) Resize(api.Size) error                          { return nil }
func (o over) Signal(string) error                            { return nil }

// TestTheHotPath measures what the daemon adds to a command, with a client that
// does as little as hutch does. It tells; a machine that is busy proves nothing.
func TestTheHotPath(t *testing.T) {
	r := start(t, Options{Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), MaxRunning: 64})
	m := &instant{memory: r.boxes}
	r.s.boxes, r.s.lives.boxes = m, m
	conn, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"argv":["true"]}`
	request := fmt.Sprintf("POST /v1/boxes/%s/execs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", r.box(), len(body), body)
	buf := make([]byte, 64<<10)
	var took []time.Duration
	for range 5000 {
		begin := time.Now()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		n := 0
		for !strings.HasSuffix(string(buf[:n]), "}\n") {
			k, err := conn.Read(buf[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		_, text, _ := strings.Cut(string(buf[:n]), "\r\n\r\n")
		var out outcome.Outcome
		if err := json.Unmarshal([]byte(text), &out); err != nil || out.Status != outcome.Success {
			t.Fatalf("%v %q", err, buf[:n])
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("p50 %v, p90 %v, p99 %v, least %v", took[2500], took[4500], took[4950], took[0])
	if took[0] > time.Millisecond {
		t.Errorf("the fastest of 5000 took %v", took[0])
	}
}
