-- mint(counter): the next token of one lock's own counter, which is never deleted.
local function mint(counter)
    -- Read back as text: the number that INCR returns to Lua is not exact beyond 2^53.
    redis.call('INCR', counter)
    local token = redis.call('GET', counter)
    if string.sub(token, 1, 1) == '-' or token == '0' then
        error('the counter of this lock was set below 0: delete it, or bump the lock')
    end
    return token
end
