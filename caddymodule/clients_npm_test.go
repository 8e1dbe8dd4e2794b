package caddymodule

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestOpenAIClientOfNpm(t *testing.T) {
	testOpenAIClient(t, func(url string) sdk { return startSDK(t, "node", npmClients(t), "openai", url) })
}

func TestAnthropicClientOfNpm(t *testing.T) {
	testAnthropicClient(t, func(url string) sdk { return startSDK(t, "node", npmClients(t), "anthropic", url) })
}

// npmClients installs the libraries and returns the path of the script that uses them.
var npmClients = func() func(t *testing.T) string {
	var once sync.Once
	var script string
	var failed error
	return func(t *testing.T) string {
		t.Helper()
		for _, program := range []string{"npm", "node"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("left out: npm clients (no %s)", program)
			}
		}
		once.Do(func() { script, failed = installNpmClients() })
		if failed != nil {
			t.Fatal(failed)
		}
		return script
	}
}()

// installNpmClients copies the script to where the libraries are put, below the build
// folder: node looks for them beside it.
func installNpmClients() (string, error) {
	folder, err := filepath.Abs("../build/clients")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	const from = "testdata/clients"
	for _, name := range []string{"package.json", "package-lock.json", "tasks.mjs"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci in %s: %w\n%s", folder, err, out)
	}
	return filepath.Join(folder, "tasks.mjs"), nil
}
