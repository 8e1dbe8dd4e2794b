//go:build race

package fleet

// atOnce is how many sessions cancel at one moment: the race detector makes each of
// them some fifty times as dear.
const atOnce = 1_000
