package caddymodule

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slotfleet/slotfleet/slotlog"
)

// slotlogMetrics shows what logs say. All of it is read from the logs' readers when
// it is asked for; the counters are theirs and survive reloads with them.
type slotlogMetrics struct {
	state *state

	sources []sourceMetric

	degraded *prometheus.Desc
	slots    *prometheus.Desc
}

// sourceMetric is a figure of a source. Figures without a value have no series.
type sourceMetric struct {
	desc    *prometheus.Desc
	counter bool
	value   func(l looked) (v float64, ok bool)
}

func newSlotlogMetrics(s *state) *slotlogMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "slotlog", name), help, labels, nil)
	}
	m := &slotlogMetrics{
		state:    s,
		degraded: desc("degraded", "1: the slots may be missing or old.", "source"),
		slots:    desc("slots", "Slots by what they do.", "source", "port", "state"),
	}
	counter := func(name, help string, value func(l looked) float64) {
		m.sources = append(m.sources, sourceMetric{
			desc(name, help, "source"), true, func(l looked) (float64, bool) { return value(l), true },
		})
	}
	gauge := func(name, help string, value func(l looked) (float64, bool)) {
		m.sources = append(m.sources, sourceMetric{desc(name, help, "source"), false, value})
	}
	counter("generated_tokens_total", "Tokens that the log says were generated since it is read.", func(l looked) float64 { return float64(l.generated) })
	counter("lines_total", "Lines read.", func(l looked) float64 { return float64(l.Lines) })
	counter("unknown_lines_total", "Lines read and not understood.", func(l looked) float64 { return float64(l.Unknown) })
	counter("long_lines_total", "Lines of which only the beginning was looked at.", func(l looked) float64 { return float64(l.Long) })
	counter("read_bytes_total", "Bytes read.", func(l looked) float64 { return float64(l.Bytes) })
	counter("resyncs_total", "Times that lines did not follow each other.", func(l looked) float64 { return float64(l.Resyncs) })
	counter("overflows_total", "Times that the system dropped file events.", func(l looked) float64 { return float64(l.Overflows) })
	counter("restarts_total", "Times that a program or FIFO was opened again.", func(l looked) float64 { return float64(l.Restarts) })
	gauge("behind_bytes", "Bytes that are there and not read yet.", func(l looked) (float64, bool) { return float64(l.Behind), true })
	gauge("last_line_timestamp_seconds", "When the last line was written, as far as that is known.", func(l looked) (float64, bool) {
		return float64(l.LastLine.UnixMilli()) / 1e3, !l.LastLine.IsZero()
	})
	return m
}

// Describe sends the descriptions of all metrics.
func (m *slotlogMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range m.sources {
		ch <- s.desc
	}
	ch <- m.degraded
	ch <- m.slots
}

// Collect sends what the logs say now. Of a log that a node reads only the slots are
// known here.
func (m *slotlogMetrics) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, l := range m.state.look(now) {
		for _, s := range m.sources {
			switch v, ok := s.value(l); {
			case ok && s.counter:
				counter(ch, s.desc, v, l.name)
			case ok:
				gauge(ch, s.desc, v, l.name)
			}
		}
		m.collect(ch, l.name, l.Degraded, l.Ports)
	}
	for _, r := range m.state.remoteLogs() {
		m.collect(ch, r.name, r.degraded(), r.ports)
	}
}

func (m *slotlogMetrics) collect(ch chan<- prometheus.Metric, name string, degraded bool, ports []slotlog.PortState) {
	v := 0.0
	if degraded {
		v = 1
	}
	gauge(ch, m.degraded, v, name)
	for _, p := range ports {
		in := map[slotlog.State]int{slotlog.Idle: 0, slotlog.Processing: 0, slotlog.Unknown: 0}
		for _, s := range p.Slots {
			in[s.State]++
		}
		for state, n := range in {
			gauge(ch, m.slots, float64(n), name, strconv.Itoa(p.Port), string(state))
		}
	}
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// Interface guards.
var _ prometheus.Collector = (*slotlogMetrics)(nil)
