package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/changeset"
	"hutch/internal/policy"
)

// BoxPath is the part of a path that names a box. huma fills exported types only.
type BoxPath struct {
	Box string `path:"box" maxLength:"128" doc:"id, unambiguous beginning of an id, or name"`
}

// A reply is what an operation answers with.
type reply[T any] struct{ Body T }

// raw is an answer that is written by hand.
type raw struct{ Body func(huma.Context) }

// empty is an answer that says nothing but that it went well.
type empty struct{}

// register adds an operation whose errors are problems.
func register[I, O any](s *Server, op huma.Operation, do func(context.Context, *I) (*O, error)) {
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := do(ctx, in)
		if err != nil {
			return nil, problemOf(err)
		}
		return out, nil
	})
}

func (s *Server) routes() {
	s.documents(s.api)
	s.mux.HandleFunc("/", s.nowhere)
	s.daemonRoutes()
	s.boxRoutes()
	s.stateRoutes()
	s.execRoutes()
	s.attachRoute()
	s.fileRoutes()
	s.portRoutes()
	s.raceRoute()
}

// health is what a live daemon answers.
type health struct {
	Status  string `json:"status" enum:"ok,draining"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

func (s *Server) daemonRoutes() {
	register(s, operation("GET", "/v1/health", "health", "Whether the daemon answers", nil), func(context.Context, *struct{}) (*reply[health], error) {
		h := health{Status: "ok", Version: s.o.Version, PID: os.Getpid()}
		if s.draining.Load() {
			h.Status = "draining"
		}
		return &reply[health]{h}, nil
	})
	register(s, operation("GET", "/v1/status", "status", "What the daemon does, and its limits", ofDaemon), func(context.Context, *struct{}) (*reply[api.Status], error) {
		counts, err := s.byState()
		if err != nil {
			return nil, err
		}
		st := api.Status{
			Version: s.o.Version, API: api.Version, PID: os.Getpid(), Started: s.started, StateDir: s.o.StateDir, Listen: append([]string{}, s.o.Listen...),
			Boxes: counts, Draining: s.draining.Load(),
			Limits: api.StatusLimits{Boxes: s.o.MaxBoxes, Memory: s.o.MaxMemory, Running: s.o.MaxRunning, Queue: s.o.Queue, Idle: s.o.Idle.Seconds()},
		}
		st.Live, st.Memory = s.lives.counts()
		st.Running, st.Waiting = s.queue.counts()
		return &reply[api.Status]{st}, nil
	})
	end := operation("POST", "/v1/shutdown", "shutdown", "End the daemon, and with it every jail; boxes stay on disk", ofDaemon)
	end.DefaultStatus = http.StatusAccepted
	register(s, end, func(context.Context, *struct{}) (*empty, error) {
		if s.o.End == nil {
			return nil, refuse(api.Unsupported, "this server is not a daemon of its own")
		}
		s.log.Info("a client asked for the end")
		go s.o.End()
		return nil, nil
	})

	s.describe(answers(operation("GET", "/metrics", "metrics", "Figures for Prometheus", ofDaemon), "200", "figures", map[string]*huma.Schema{"text/plain": text()}))
	s.mux.Handle("GET /metrics", s.metrics.handler())
	for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		s.mux.HandleFunc("GET /debug/pprof/"+path, func(w http.ResponseWriter, r *http.Request) {
			if !peerIn(r.Context()).unix {
				writeProblem(w, newProblem(http.StatusForbidden, api.Refused, "profiles show memory: they are for the unix socket only"))
				return
			}
			h(w, r)
		})
	}
}

// describe adds what is not served by huma to the document.
func (s *Server) describe(op huma.Operation) {
	huma.Register(describer{s.api}, op, func(context.Context, *struct{}) (*empty, error) { return nil, nil })
}

// describer is an API that registers nothing but words.
type describer struct{ huma.API }

// Adapter drops the handlers.
func (d describer) Adapter() huma.Adapter { return nowhereAdapter{} }

type nowhereAdapter struct{ huma.Adapter }

// Handle drops a handler.
func (nowhereAdapter) Handle(*huma.Operation, func(huma.Context)) {}

type createInput struct {
	RawBody []byte
	Body    api.Create
}

func (s *Server) boxRoutes() {
	create := operation("POST", "/v1/boxes", "create-box", "Make a box", ofLive)
	create.DefaultStatus = http.StatusCreated
	register(s, create, func(ctx context.Context, in *createInput) (*reply[*api.Box], error) {
		if err := strictCreate(in.RawBody, &in.Body); err != nil {
			return nil, err
		}
		start := time.Now()
		b, err := s.boxes.Create(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		s.metrics.took(phaseBranch, time.Since(start))
		s.log.Info("created", "box", b.ID, "name", b.Name, "workspace", b.Workspace, "client", peerIn(ctx).client)
		return &reply[*api.Box]{b}, nil
	})
	register(s, operation("GET", "/v1/boxes", "list-boxes", "List boxes", ofDaemon), func(_ context.Context, in *struct {
		All bool `query:"all" doc:"those that have ended, too"`
	}) (*reply[[]api.Box], error) {
		list, err := s.boxes.List(in.All)
		return &reply[[]api.Box]{orEmpty(list)}, err
	})
	register(s, operation("GET", "/v1/boxes/{box}", "show-box", "Show a box", ofBox), func(_ context.Context, in *BoxPath) (*reply[*api.Box], error) {
		b, err := s.boxes.Show(in.Box)
		return &reply[*api.Box]{b}, err
	})
	register(s, operation("DELETE", "/v1/boxes/{box}", "remove-box", "Remove a box with all that is kept of it, ending what runs in it", ofBox), func(ctx context.Context, in *BoxPath) (*empty, error) {
		return nil, s.ending(ctx, in.Box, "removed", s.boxes.Remove)
	})
	release := operation("POST", "/v1/boxes/{box}/release", "release-box", "End the jail of a box and let go of it: another process may take it", ofBox)
	register(s, release, func(ctx context.Context, in *BoxPath) (*empty, error) {
		return nil, s.ending(ctx, in.Box, "released", s.boxes.Release)
	})
	register(s, operation("GET", "/v1/boxes/{box}/processes", "list-processes", "List the processes of a box", ofBox), func(_ context.Context, in *BoxPath) (*reply[[]api.Process], error) {
		list, err := s.boxes.Processes(in.Box)
		return &reply[[]api.Process]{orEmpty(list)}, err
	})
	register(s, operation("POST", "/v1/boxes/{box}/kill", "kill", "End or signal a command, a process or everything in a box", ofBox), func(ctx context.Context, in *struct {
		BoxPath
		Body api.Kill
	}) (*empty, error) {
		s.log.Info("kill", "box", in.Box, "exec", in.Body.Exec, "pid", in.Body.PID, "all", in.Body.All, "signal", in.Body.Signal, "client", peerIn(ctx).client)
		return nil, s.boxes.Kill(in.Box, in.Body)
	})
}

// ending does what takes a box's jail away.
func (s *Server) ending(ctx context.Context, ref, what string, do func(string) error) error {
	b, err := s.boxes.Show(ref)
	if err != nil {
		return err
	}
	if err := do(b.ID); err != nil {
		return err
	}
	s.lives.forget(b.ID)
	s.log.Info(what, "box", b.ID, "client", peerIn(ctx).client)
	return nil
}

// strictCreate checks what a new box is asked to be like. A relative path would
// begin where the daemon was started.
func strictCreate(body []byte, c *api.Create) error {
	for name, path := range map[string]string{"workspace": c.Workspace, "policy_file": c.PolicyFile, "layer_dir": c.LayerDir} {
		if !filepath.IsAbs(path) && (path != "" || name == "workspace") {
			return refuse(api.Invalid, name+": give an absolute path")
		}
	}
	return strictPolicy(body, &c.Policy)
}

// strictPolicy reads the policy in a body as one in a file is read: encoding/json
// would take what it does not know for nothing.
func strictPolicy(body []byte, into *policy.Policy) error {
	var in struct {
		Policy json.RawMessage `json:"policy"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return refuse(api.Invalid, err.Error())
	}
	if len(in.Policy) == 0 {
		return nil
	}
	p, err := policy.ParseJSON("policy", in.Policy)
	if err != nil {
		return refuse(api.Invalid, err.Error())
	}
	*into = *p
	return nil
}

func (s *Server) stateRoutes() {
	register(s, operation("GET", "/v1/boxes/{box}/checkpoints", "list-checkpoints", "List the checkpoints of a box", ofBox), func(_ context.Context, in *BoxPath) (*reply[[]api.Checkpoint], error) {
		b, err := s.boxes.Show(in.Box)
		if err != nil {
			return nil, err
		}
		return &reply[[]api.Checkpoint]{orEmpty(b.Checkpoints)}, nil
	})
	checkpoint := operation("POST", "/v1/boxes/{box}/checkpoints", "checkpoint", "Make a checkpoint, to which the box can go back", ofBox)
	checkpoint.DefaultStatus = http.StatusCreated
	register(s, checkpoint, func(ctx context.Context, in *struct {
		BoxPath
		Body *api.CheckpointRequest
	}) (*reply[*api.Checkpoint], error) {
		c, err := s.boxes.Checkpoint(ctx, in.Box, orZero(in.Body).Name)
		if err != nil {
			return nil, err
		}
		s.log.Info("checkpoint", "box", in.Box, "name", c.Name)
		return &reply[*api.Checkpoint]{c}, nil
	})
	register(s, operation("POST", "/v1/boxes/{box}/restore", "restore", "Go back to a checkpoint", ofBox), func(ctx context.Context, in *struct {
		BoxPath
		Body api.RestoreRequest
	}) (*empty, error) {
		s.log.Info("restore", "box", in.Box, "name", in.Body.Name)
		return nil, s.boxes.Restore(ctx, in.Box, in.Body.Name)
	})
	fork := operation("POST", "/v1/boxes/{box}/fork", "fork", "Make boxes that go on from the state of this one", ofLive)
	fork.DefaultStatus = http.StatusCreated
	register(s, fork, func(ctx context.Context, in *struct {
		BoxPath
		Body *api.ForkRequest
	}) (*reply[[]api.Box], error) {
		ask := orZero(in.Body)
		start := time.Now()
		list, err := s.boxes.Fork(ctx, in.Box, max(ask.Count, 1), ask.Names)
		if err != nil {
			return nil, err
		}
		s.metrics.took(phaseBranch, time.Since(start))
		s.log.Info("forked", "box", in.Box, "forks", len(list))
		return &reply[[]api.Box]{orEmpty(list)}, nil
	})
	commit := operation("POST", "/v1/boxes/{box}/commit", "commit", "Carry what a box changed into the workspace, all or nothing", ofBox)
	register(s, commit, func(ctx context.Context, in *struct {
		BoxPath
		Body *api.Commit
	}) (*reply[*box.Delivery], error) {
		d, err := s.commit(ctx, in.Box, orZero(in.Body))
		if err != nil {
			return nil, err
		}
		return &reply[*box.Delivery]{d}, nil
	})
	register(s, operation("POST", "/v1/boxes/{box}/discard", "discard", "Drop what a box changed, and the box", ofBox), func(ctx context.Context, in *struct {
		BoxPath
		Body *api.Discard
	}) (*empty, error) {
		return nil, s.ending(ctx, in.Box, "discarded", func(id string) error { return s.boxes.Discard(ctx, id, orZero(in.Body).Force) })
	})

	diff := operation("GET", "/v1/boxes/{box}/diff", "diff", "What a box changed", ofBox)
	diff = answers(diff, "200", "as JSON, or as a patch that git apply takes", map[string]*huma.Schema{
		"application/json": schemaOf[box.DiffReport](s.api.OpenAPI().Components.Schemas), "text/x-diff": binary(),
	})
	register(s, diff, s.diff)
}

// commit promotes, and tells a commit that was not made by a problem.
func (s *Server) commit(ctx context.Context, ref string, c api.Commit) (*box.Delivery, error) {
	b, err := s.boxes.Show(ref)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	done, err := s.boxes.Commit(context.WithoutCancel(ctx), b.ID, c) // a promotion is not left half way
	d := box.Delivered(done, err)
	s.metrics.took(phaseCommit, time.Since(start))
	s.log.Info("commit", "box", b.ID, "status", d.Status, "error", d.Error, "client", peerIn(ctx).client)
	if err == nil {
		if !d.Kept {
			s.lives.forget(b.ID)
		}
		return d, nil
	}
	p := problemOf(err)
	var held *box.HeldError
	switch {
	case len(d.Conflicts) > 0:
		p = newProblem(http.StatusConflict, api.Conflicting, err.Error())
	case errors.As(err, &held):
		p = newProblem(http.StatusConflict, api.HeldBack, err.Error())
	default:
		return nil, p
	}
	p.Delivery, _ = json.Marshal(d)
	return nil, p
}

// mostInMemory is how much of a patch is held in memory before it goes into a
// file.
const mostInMemory = 1 << 20

// diff reads the change whole before it answers: a slow reader must not hold
// the box.
func (s *Server) diff(ctx context.Context, in *struct {
	BoxPath
	Format string   `query:"format" enum:"json,patch" default:"json"`
	Git    bool     `query:"git" doc:".git, too"`
	Only   []string `query:"only,explode" doc:"globs in gitignore's syntax: of the change only what matches one"`
}) (*raw, error) {
	start := time.Now()
	var report *box.DiffReport
	patch := &spool{}
	err := s.boxes.View(ctx, in.Box, in.Git, func(c *changeset.Changeset, t changeset.Trees, judge box.Judge) (err error) {
		if c, err = box.Select(c, in.Only); err != nil {
			return refuse(api.Invalid, err.Error())
		}
		if in.Format == "json" {
			report, err = box.Describe(c, t, judge, start)
			return err
		}
		out := bufio.NewWriter(patch)
		if err := changeset.Files(c, t, func(f *changeset.FileChange) error {
			f.Write(out)
			return patch.err
		}); err != nil {
			return err
		}
		return out.Flush()
	})
	if err != nil {
		patch.close()
		return nil, err
	}
	s.metrics.took(phaseDiff, time.Since(start))
	return &raw{func(c huma.Context) {
		defer patch.close()
		_, w := humago.Unwrap(c)
		if report != nil {
			writeJSON(w, "application/json", http.StatusOK, report)
			return
		}
		w.Header().Set("Content-Type", "text/x-diff")
		_ = patch.copyTo(w)
	}}, nil
}

// spool holds what is written to it, in memory while it is little.
type spool struct {
	head bytes.Buffer
	file *os.File
	err  error
}

func (p *spool) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	if p.file == nil && p.head.Len()+len(b) <= mostInMemory {
		return p.head.Write(b)
	}
	if p.file == nil {
		if p.file, p.err = os.CreateTemp("", "hutchd-"); p.err != nil {
			return 0, p.err
		}
		p.err = os.Remove(p.file.Name())
	}
	n, err := p.file.Write(b)
	p.err = err
	return n, err
}

func (p *spool) copyTo(w io.Writer) error {
	if _, err := w.Write(p.head.Bytes()); err != nil || p.file == nil {
		return err
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, p.file)
	return err
}

func (p *spool) close() {
	if p.file != nil {
		p.file.Close()
	}
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func orZero[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}
