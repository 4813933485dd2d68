module peers

go 1.24

require golang.org/x/time v0.16.0
