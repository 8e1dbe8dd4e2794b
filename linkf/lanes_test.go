package linkf

import "testing"

// A head places by what it is told, so that a node must not tell of lanes that it
// declines.
func TestNodeTellsNoMoreLanesThanItTakes(t *testing.T) {
	for _, c := range []struct{ most, server, want int }{{0, 8, 8}, {3, 8, 3}, {9, 8, 8}, {3, 0, 0}} {
		l := lanes{most: c.most, models: make(map[string]*modelLanes)}
		m := status{Instances: []instance{{Model: "m", Lanes: uint32(c.server)}}}
		l.set(&m)
		if got := int(m.Instances[0].Lanes); got != c.want {
			t.Errorf("at most %d lanes of a server with %d: it tells %d, want %d", c.most, c.server, got, c.want)
		}
		taken := 0
		for taken < 20 && l.take("m") == "" {
			taken++
		}
		if taken != max(1, c.want) {
			t.Errorf("at most %d lanes of a server with %d: it takes %d, want %d", c.most, c.server, taken, max(1, c.want))
		}
	}
}
