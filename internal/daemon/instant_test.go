package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
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

// TestTheHotPath measures what the daemon adds to a command, beside a bare
// net/http handler that reads and writes the same JSON. The client does as
// little as hutch does. They take turns, so that a busy machine is one to both.
func TestTheHotPath(t *testing.T) {
	r := start(t, Options{Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), MaxRunning: 64})
	m := &instant{memory: r.boxes}
	r.s.boxes, r.s.lives.boxes = m, m
	l, err := net.Listen("unix", r.path+".bare")
	if err != nil {
		t.Fatal(err)
	}
	bare := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var run api.Run
		if err := json.NewDecoder(q.Body).Decode(&run); err != nil || len(run.Argv) != 1 {
			t.Error(err, run)
		}
		writeJSON(w, "application/json", http.StatusOK, done)
	})}
	go bare.Serve(l)
	defer bare.Close()
	box := r.box()
	daemon, floor := dial(t, r.path, box), dial(t, r.path+".bare", box)
	var took, least []time.Duration
	for range 4000 {
		took = append(took, daemon())
		least = append(least, floor())
	}
	slices.Sort(took)
	slices.Sort(least)
	t.Logf("hutchd: p50 %v, p90 %v, p99 %v; bare net/http: p50 %v, p90 %v, p99 %v", took[2000], took[3600], took[3960], least[2000], least[3600], least[3960])
	if took[400] > 3*least[400] {
		t.Errorf("at p10 the daemon takes %v, a bare handler %v", took[400], least[400])
	}
}

// dial returns what runs a command once, and tells how long that took.
func dial(t *testing.T, path, box string) func() time.Duration {
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	body := `{"argv":["true"]}`
	request := fmt.Sprintf("POST /v1/boxes/%s/execs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", box, len(body), body)
	buf := make([]byte, 64<<10)
	return func() time.Duration {
		begin := time.Now()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		n := 0
		for !bytes.HasSuffix(buf[:n], []byte("}\n")) {
			k, err := conn.Read(buf[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		_, text, _ := bytes.Cut(buf[:n], []byte("\r\n\r\n"))
		var out outcome.Outcome
		if err := json.Unmarshal(text, &out); err != nil || out.Status != outcome.Success {
			t.Fatalf("%v %q", err, buf[:n])
		}
		return time.Since(begin)
	}
}
