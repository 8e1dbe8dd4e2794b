//go:build !race

package fleet

// atOnce is how many sessions cancel at one moment.
const atOnce = 10_000
