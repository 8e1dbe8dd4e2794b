package caddymodule

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddyserver/caddy/v2"
)

// namespace is how the names of all metrics begin.
const namespace = "slotfleet"

// otherModel stands for all models that are not served: names that clients make up
// must not become series.
const otherModel = "_other"

// registerMetrics shows collectors in the registry of a configuration. Each has its
// own, and the collectors are those of the process, so that counters survive a
// reload; two apps may bring the same one.
func registerMetrics(ctx caddy.Context, collectors ...prometheus.Collector) error {
	registry := ctx.GetMetricsRegistry()
	for _, c := range collectors {
		err := registry.Register(c)
		if _, twice := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !twice {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// collectors are several as one.
type collectors []prometheus.Collector

// Describe sends the descriptions of all.
func (c collectors) Describe(ch chan<- *prometheus.Desc) {
	for _, each := range c {
		each.Describe(ch)
	}
}

// Collect sends the metrics of all.
func (c collectors) Collect(ch chan<- prometheus.Metric) {
	for _, each := range c {
		each.Collect(ch)
	}
}

// Interface guards.
var _ prometheus.Collector = collectors(nil)
