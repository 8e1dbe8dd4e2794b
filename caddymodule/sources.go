package caddymodule

import (
	"slices"
	"time"

	"github.com/slotfleet/slotfleet/slotlog"
)

// source is one log file as the configuration in force calls it.
type source struct {
	name string
	also []string // further names of the same file
	node string   // that writes it; empty: not said
	tail *tail
}

// looked is what a source says at one moment.
type looked struct {
	source
	slotlog.Snapshot
	generated int64
}

// known lists the logs of the configuration in force: those of the slotlog app, then
// those that nodes brought. Each file and each name is there once, also in the
// moment of a reload when one app is the old one's and one the new one's.
func (s *state) known() []source {
	var all []source
	add := func(l namedLog) {
		if slices.ContainsFunc(all, func(x source) bool { return x.name == l.name || slices.Contains(x.also, l.name) }) {
			return
		}
		i := slices.IndexFunc(all, func(x source) bool { return x.tail == l.tail })
		if i < 0 {
			all = append(all, source{name: l.name, node: l.node, tail: l.tail})
			return
		}
		all[i].also = append(all[i].also, l.name)
		if all[i].node == "" {
			all[i].node = l.node
		}
	}
	app := s.apps.last()
	if run := s.sources.last(); run != nil {
		for _, l := range run.logs {
			if app != nil {
				l.node = app.run.reads[l.name]
			}
			add(l)
		}
	}
	if app != nil {
		for _, l := range app.run.logs {
			add(l)
		}
	}
	return all
}

// look reads all sources.
func (s *state) look(now time.Time) []looked {
	all := []looked{}
	for _, src := range s.known() {
		if snapshot, generated, ok := src.tail.look(now); ok {
			all = append(all, looked{src, snapshot, generated})
		}
	}
	return all
}
