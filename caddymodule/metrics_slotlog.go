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

	generated, lines, unknown, slots *prometheus.Desc
}

func newSlotlogMetrics(s *state) *slotlogMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "slotlog", name), help, labels, nil)
	}
	return &slotlogMetrics{
		state:     s,
		generated: desc("generated_tokens_total", "Tokens that the log says were generated since it is read.", "source"),
		lines:     desc("lines_total", "Lines read.", "source"),
		unknown:   desc("unknown_lines_total", "Lines read and not understood.", "source"),
		slots:     desc("slots", "Slots by what they do.", "source", "port", "state"),
	}
}

// Describe sends the descriptions of all metrics.
func (m *slotlogMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.generated, m.lines, m.unknown, m.slots} {
		ch <- d
	}
}

// Collect sends what the logs say now.
func (m *slotlogMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, l := range m.state.look(time.Now()) {
		counter(ch, m.generated, float64(l.generated), l.name)
		counter(ch, m.lines, float64(l.Lines), l.name)
		counter(ch, m.unknown, float64(l.Unknown), l.name)
		for _, p := range l.Ports {
			in := map[slotlog.State]int{slotlog.Idle: 0, slotlog.Processing: 0, slotlog.Unknown: 0}
			for _, s := range p.Slots {
				in[s.State]++
			}
			for state, n := range in {
				gauge(ch, m.slots, float64(n), l.name, strconv.Itoa(p.Port), string(state))
			}
		}
	}
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// Interface guards.
var _ prometheus.Collector = (*slotlogMetrics)(nil)
