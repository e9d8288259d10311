-- Raise the counter to a token; it never goes down.
-- KEYS: counter
-- ARGV: token
-- needs: remember
remember(KEYS[1], ARGV[1])
return 1
