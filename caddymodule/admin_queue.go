package caddymodule

import "net/http"

// showQueue answers GET /fleet/queue.
func showQueue(s *state, _ *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return s.manager.Queue(), nil
}

// showWarm answers GET /fleet/warm.
func showWarm(s *state, _ *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return s.manager.Warm(), nil
}
