// The client for Go that retries. A line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/hashicorp/go-retryablehttp"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	here := "http://127.0.0.1:" + os.Args[1]
	count := func(key string) int {
		answer := must(http.Get(here + "/counts/" + key))
		defer answer.Body.Close()
		return must(strconv.Atoi(string(must(io.ReadAll(answer.Body)))))
	}
	client := retryablehttp.NewClient()
	client.Logger = nil
	ask := func(key string) bool {
		answer, err := client.Get(here + "/plain/" + key)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == 200
	}
	found := []bool{ask("retryable"), ask("retryable"), ask("retryable-hopeless")}
	var retried any = count("retryable") - 1
	if fmt.Sprint(found) != "[true true false]" {
		retried = fmt.Sprint("admitted: ", found)
	}
	line := map[string]any{"client": "hashicorp/go-retryablehttp (Go)", "retried": retried, "hopeless": count("retryable-hopeless")}
	fmt.Println(string(must(json.Marshal(line))))
}
