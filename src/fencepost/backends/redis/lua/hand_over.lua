-- hand_over(lock, queue, counter, sharers, here): grant a lock that is free, or shared by `sharers`, to its first live
-- waiter, and publish that to the waiter's process. If that waiter shares the lock, also grant it to the waiters behind
-- it that may share it, too. If there is no holder then, delete the lock. Returns whether the lock is held, and which
-- waiters at the channel `here` were granted it: holder, token, holder, token and so on. Nothing is published to those:
-- the answer to the request tells them.
local function hand_over(lock, queue, counter, sharers, here)
    local count, served, now, token = sharers or 0, {}
    while true do
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        if not head then break end
        local ttl, limit, channel, holder = string.match(head, '^(%d+)/?(%d*):([^:]*):(.*)$')
        if not channel or (channel ~= here and not alive(channel)) then
            redis.call('ZREM', queue, head)
        elseif count > 0 and (limit == '' or count >= tonumber(limit)) then
            break -- it blocks all waiters behind it
        else
            -- The message is a hint: the waiter then asks whether it holds the lock. If this user may not publish, or
            -- Redis is out of memory, free the lock nevertheless: the waiters look from time to time.
            if channel ~= here and type(redis.pcall('PUBLISH', channel, holder)) ~= 'number' then break end
            redis.call('ZREM', queue, head)
            if not token then
                local minted
                now = clock()
                minted, token = pcall(mint, counter, now)
                if not minted then break end
            end
            if channel == here then served[#served + 1], served[#served + 2] = holder, token end
            local own = holder .. ':' .. token
            if limit == '' then
                redis.call('SET', lock, own, 'PX', ttl)
                return true, served
            end
            local shares = lock .. '\31shares'
            if count == 0 then redis.call('DEL', shares) end
            redis.call('ZADD', shares, now + ttl * 1000, own)
            count, token = count + 1, nil
        end
    end
    if count == 0 then
        redis.call('DEL', lock)
        return false, served
    end
    cover(lock, now or clock())
    return true, served
end
