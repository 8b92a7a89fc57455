package daemon

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// metrics is what the daemon counts. What can be looked up is not counted but
// asked for when somebody reads it.
type metrics struct {
	registry *prometheus.Registry
	phase    map[string]prometheus.Observer
	requests *prometheus.HistogramVec
	execs    *prometheus.CounterVec
	kills    *prometheus.CounterVec
}

// The phases of which the time is taken.
const (
	phaseQueue  = "queue"  // waiting for a turn
	phaseBranch = "branch" // making a box, or forking one
	phaseJail   = "jail"   // from the turn of a command to its start, which makes the jail where there is none
	phaseExec   = "exec"   // from a command's start to its end
	phaseDiff   = "diff"   // reading a change
	phaseCommit = "commit" // a promotion
)

// killers are the statuses of commands that something else ended.
var killers = map[outcome.Status]bool{
	outcome.Timeout: true, outcome.MemoryExceeded: true, outcome.Killed: true, outcome.OutputExceeded: true, outcome.DiskExceeded: true, outcome.CPUExceeded: true,
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), phase: map[string]prometheus.Observer{}}
	phases := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "hutch_phase_seconds", Help: "Time that each phase took.", Buckets: prometheus.ExponentialBuckets(25e-6, 2, 24),
	}, []string{"phase"})
	for _, name := range []string{phaseQueue, phaseBranch, phaseJail, phaseExec, phaseDiff, phaseCommit} {
		m.phase[name] = phases.WithLabelValues(name)
	}
	m.requests = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "hutch_request_seconds", Help: "Time that each request took.", Buckets: prometheus.ExponentialBuckets(50e-6, 4, 12),
	}, []string{"route", "status"})
	m.execs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hutch_execs_total", Help: "Commands that ended, by status of their outcome."}, []string{"status"})
	m.kills = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hutch_kills_total", Help: "Commands that a limit or a signal ended."}, []string{"cause"})
	m.registry.MustRegister(phases, m.requests, m.execs, m.kills, &state{s: s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) took(phase string, d time.Duration) { m.phase[phase].Observe(d.Seconds()) }

func (m *metrics) request(r *http.Request, status int, d time.Duration) {
	route := r.Pattern
	if route == "" || route == "/" {
		route = "none"
	}
	if status == 0 {
		status = http.StatusOK
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(d.Seconds())
}

func (m *metrics) ended(o *outcome.Outcome) {
	m.execs.WithLabelValues(string(o.Status)).Inc()
	if killers[o.Status] {
		m.kills.WithLabelValues(string(o.Status)).Inc()
	}
	m.took(phaseExec, time.Duration(o.DurationMS*float64(time.Millisecond)))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// state is what is looked up at each reading.
type state struct{ s *Server }

var (
	boxesDesc   = prometheus.NewDesc("hutch_boxes", "Boxes by state; ended ones are left out.", []string{"state"}, nil)
	liveDesc    = prometheus.NewDesc("hutch_live_boxes", "Boxes that have a jail.", nil, nil)
	memoryDesc  = prometheus.NewDesc("hutch_promised_memory_bytes", "Memory promised to live boxes.", nil, nil)
	runningDesc = prometheus.NewDesc("hutch_running_execs", "Commands that run.", nil, nil)
	waitingDesc = prometheus.NewDesc("hutch_waiting_execs", "Commands that wait for their turn.", nil, nil)
	flightDesc  = prometheus.NewDesc("hutch_requests_in_flight", "Requests that are being answered.", nil, nil)
	poolDesc    = prometheus.NewDesc("hutch_pool_total", "Jails that were asked of the pool.", []string{"result"}, nil)
)

// Describe is for prometheus.
func (c *state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{boxesDesc, liveDesc, memoryDesc, runningDesc, waitingDesc, flightDesc, poolDesc} {
		ch <- d
	}
}

// Collect is for prometheus.
func (c *state) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if counts, err := c.s.byState(); err == nil {
		for _, st := range []api.State{api.Created, api.Ready, api.Busy, api.Committing, api.Failed} {
			gauge(boxesDesc, float64(counts[st]), string(st))
		}
	}
	live, memory := c.s.lives.counts()
	running, waiting := c.s.queue.counts()
	gauge(liveDesc, float64(live))
	gauge(memoryDesc, float64(memory))
	gauge(runningDesc, float64(running))
	gauge(waitingDesc, float64(waiting))
	gauge(flightDesc, float64(c.s.inflight.Load()))
	if p, ok := c.s.boxes.(poolCounts); ok {
		hits, misses := p.PoolCounts()
		ch <- prometheus.MustNewConstMetric(poolDesc, prometheus.CounterValue, float64(hits), "hit")
		ch <- prometheus.MustNewConstMetric(poolDesc, prometheus.CounterValue, float64(misses), "miss")
	}
}

func (s *Server) byState() (map[api.State]int, error) {
	list, err := s.boxes.List(false)
	if err != nil {
		return nil, err
	}
	counts := map[api.State]int{}
	for i := range list {
		counts[list[i].State]++
	}
	return counts, nil
}
