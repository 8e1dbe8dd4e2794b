//go:build race

package linkf

// The race detector makes the simulation ten times as slow, and has nothing to find in
// machines that have no goroutine.
func init() { raced = true }
