package caddymodule

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slotfleet/slotfleet/fleet"
)

// Buckets in seconds. A generation takes from a moment to many minutes.
var (
	firstTokenBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}
	durationBuckets   = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200}
	waitBuckets       = []float64{.001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}
)

// fleetMetrics counts requests and shows the fleet. It lives as long as the state,
// so its counters survive reloads.
type fleetMetrics struct {
	state *state

	requests   *prometheus.CounterVec
	failovers  *prometheus.CounterVec
	generated  *prometheus.CounterVec
	expected   *prometheus.CounterVec
	reused     *prometheus.CounterVec
	refused    *prometheus.CounterVec
	firstToken *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	wait       *prometheus.HistogramVec
	counted    collectors // all of the above

	nodeUp, lanesActive, lanes, waiting, waitingBytes, buffer, sessions *prometheus.Desc
}

func newFleetMetrics(s *state) *fleetMetrics {
	m := &fleetMetrics{
		state: s,

		requests:  counterVec("requests_total", "Requests for a generation that ended.", "model", "outcome", "reason"),
		failovers: counterVec("failovers_total", "Running requests that left a node for another one.", "node", "reason"),
		generated: counterVec("generated_tokens_total", "Tokens generated for requests.", "node", "model"),
		expected: counterVec("prefix_expected_tokens_total",
			"Prompt tokens expected in the cache of the server that was chosen.", "node", "model"),
		reused: counterVec("prefix_reused_tokens_total",
			"Prompt tokens that the server found in its cache.", "node", "model"),
		refused: counterVec("queue_refused_total",
			"Requests that met a limit of the queue.", "reason"),
		firstToken: histogramVec("time_to_first_token_seconds",
			"Time from a request's admission to the first word of the model.", firstTokenBuckets, "model"),
		duration: histogramVec("request_duration_seconds",
			"Time from a request's arrival to its end.", durationBuckets, "model", "outcome"),
		wait: histogramVec("queue_wait_seconds",
			"Time that requests waited for a lane.", waitBuckets, "model"),

		nodeUp:       fleetDesc("node_up", "Whether the node can be used.", "node"),
		lanesActive:  fleetDesc("lanes_active", "Lanes that requests of ours hold.", "node", "model"),
		lanes:        fleetDesc("lanes", "Lanes there are, where that is known.", "node", "model"),
		waiting:      fleetDesc("queue_waiting", "Requests that wait for a lane."),
		waitingBytes: fleetDesc("queue_bytes", "Size of the bodies of requests that wait for a lane."),
		sessions:     fleetDesc("sessions", "Requests that run or wait.", "state"),
		buffer:       fleetDesc("buffer_bytes", "Memory set aside for requests and what is held of their answers."),
	}
	m.counted = collectors{m.requests, m.failovers, m.generated, m.expected, m.reused, m.refused, m.firstToken, m.duration, m.wait}
	return m
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func histogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
	}, labels)
}

func fleetDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// ended counts a request. The handler calls it, for it knows also of those that were
// refused before they came to the fleet.
func (m *fleetMetrics) ended(r fleet.Record, took time.Duration) {
	model := cmp.Or(r.Model, otherModel)
	m.requests.WithLabelValues(model, string(r.Outcome), string(r.Reason)).Inc()
	m.duration.WithLabelValues(model, string(r.Outcome)).Observe(took.Seconds())
	if r.Reason == reasonBadRequest {
		return // it never waited for anything
	}
	m.wait.WithLabelValues(model).Observe(r.Waited.Seconds())
	if r.FirstToken > 0 {
		m.firstToken.WithLabelValues(model).Observe(r.FirstToken.Seconds())
	}
}

// Moved counts a request that left a node.
func (m *fleetMetrics) Moved(node, why string) { m.failovers.WithLabelValues(node, why).Inc() }

// Generated counts tokens.
func (m *fleetMetrics) Generated(node, model string, n fleet.Tokens) {
	m.generated.WithLabelValues(node, model).Add(float64(n))
}

// Reused counts what was expected of a cache, and what was there.
func (m *fleetMetrics) Reused(node, model string, expected, actual fleet.Tokens) {
	m.expected.WithLabelValues(node, model).Add(float64(expected))
	m.reused.WithLabelValues(node, model).Add(float64(actual))
}

// Refused counts a request that met a limit of the queue.
func (m *fleetMetrics) Refused(limit string) { m.refused.WithLabelValues(limit).Inc() }

// Describe sends the descriptions of all metrics.
func (m *fleetMetrics) Describe(ch chan<- *prometheus.Desc) {
	m.counted.Describe(ch)
	for _, d := range []*prometheus.Desc{m.nodeUp, m.lanesActive, m.lanes, m.waiting, m.waitingBytes, m.buffer, m.sessions} {
		ch <- d
	}
}

// Collect sends the counters, and the fleet as it is now.
func (m *fleetMetrics) Collect(ch chan<- prometheus.Metric) {
	m.counted.Collect(ch)
	s := m.state.manager.Status()
	q := m.state.manager.Queue()
	gauge(ch, m.waiting, float64(q.Waiting))
	gauge(ch, m.waitingBytes, float64(q.Bytes))
	gauge(ch, m.buffer, float64(m.state.memory.used.Load()))
	for phase, n := range m.state.manager.Phases() {
		gauge(ch, m.sessions, float64(n), phase.String())
	}
	for _, n := range s.Nodes {
		up := 0.0
		if n.Up {
			up = 1
		}
		gauge(ch, m.nodeUp, up, n.Name)
		for _, i := range n.Instances {
			gauge(ch, m.lanesActive, float64(i.LanesActive), n.Name, i.Model)
			if i.Lanes > 0 {
				gauge(ch, m.lanes, float64(i.Lanes), n.Name, i.Model)
			}
		}
	}
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Interface guards.
var (
	_ prometheus.Collector = (*fleetMetrics)(nil)
	_ fleet.Observer       = (*fleetMetrics)(nil)
)
