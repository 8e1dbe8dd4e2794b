package caddymodule

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape reads the metrics page as Prometheus does: series with sorted labels to
// values; of histograms the counts.
func scrape(t testing.TB, e *edge) map[string]float64 {
	t.Helper()
	page := e.get(e.Admin + "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page.Body))
	if err != nil {
		t.Fatalf("the metrics page does not parse: %v", err)
	}
	series := make(map[string]float64)
	for name, f := range families {
		if !strings.HasPrefix(name, "slotfleet_") {
			continue
		}
		for _, m := range f.Metric {
			labels := make([]string, 0, len(m.Label))
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			sort.Strings(labels)
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Histogram != nil:
				series[key] = float64(m.Histogram.GetSampleCount())
			case m.Counter != nil:
				series[key] = m.Counter.GetValue()
			default:
				series[key] = m.Gauge.GetValue()
			}
		}
	}
	return series
}

func TestMetricsAreWellFormed(t *testing.T) {
	s, err := holdState()
	if err != nil {
		t.Fatal(err)
	}
	defer dropState()
	for _, c := range []prometheus.Collector{s.fleet, s.slotlog} {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
