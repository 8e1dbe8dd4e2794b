package fleet

import (
	"cmp"
	"time"
)

// How long models take until they are in memory. What is seen of one instance counts
// there, and for what is not known of its model elsewhere, or of other models on its node.

const (
	// usualLoad is the time in seconds to load a model of which nothing is known.
	usualLoad = 10

	// What one load may teach is bounded, in seconds.
	leastLoad = 1e-3
	mostLoad  = 3600

	// overdue is the share of its time that a load counts as taking still, that should be
	// over already.
	overdue = 0.1
)

// loads notes that a request of ours has the instance loaded, from now on.
func (i *instance) loads(now time.Time) {
	i.State = StateLoading
	i.begins(now)
}

// begins notes that a load begins. Of one that sleeps the request that wakes it is all
// that is seen of that.
func (i *instance) begins(now time.Time) {
	if i.loading.IsZero() {
		i.loading = now
	}
}

// followLoad learns from what the node says of the instance now how long a load took. was
// is what it said before. Of a load that it did not see begin it learns nothing.
func (m *Manager) followLoad(i *instance, was Instance, now time.Time) {
	switch i.State {
	case StateLoading:
		if was.Model != "" && was.State != StateLoading {
			i.begins(now)
		}
	case StateSleeping: // a request of ours may be waking it
	case StateReady:
		if !i.loading.IsZero() {
			m.loadTook(i, now.Sub(i.loading))
		}
		i.loading = time.Time{}
	default:
		i.loading = time.Time{}
	}
}

// loadTook takes in how long a load took.
func (m *Manager) loadTook(i *instance, took time.Duration) {
	s := bounded(took.Seconds(), leastLoad, mostLoad)
	blend(&i.loadTook, s)
	blend(&i.node.loadTook, s)
	if f := m.figures(i.Model); f != nil {
		blend(&f.load, s)
	}
}

// loadTime is how long the instance takes until its model is in memory, in seconds.
func (m *Manager) loadTime(i *instance) float64 {
	var model float64
	if f := m.models[i.Model]; f != nil {
		model = f.load
	}
	return cmp.Or(i.loadTook, model, i.node.loadTook, usualLoad)
}

// untilLoaded is how much of that is left.
func (m *Manager) untilLoaded(i *instance, now time.Time) float64 {
	all := m.loadTime(i)
	if i.loading.IsZero() {
		return all
	}
	return bounded(all-now.Sub(i.loading).Seconds(), overdue*all, all)
}
